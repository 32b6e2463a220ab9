"""Sliding-window attention of a whole sequence: the query at s attends to the keys at s - window < t <= s.

Shapes: B batch, L tokens, H KV heads, g query heads per KV head, Q = H g, d head_dim, S queries of a block, T keys that
some query of the block attends to.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

QUERY_BLOCK = 1024  # queries that attend at once: bounds the mask at QUERY_BLOCK x (QUERY_BLOCK + window)


def window_mask(query_S: Tensor, key_T: Tensor, window: int) -> Tensor:
    """Which positions `key_T` a query at `query_S` attends to, bool [..., S, T]."""
    distance = query_S[..., :, None] - key_T[..., None, :]
    return (distance >= 0) & (distance < window)


def window_attention(
    query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, window: int, scaling: float, block: int = QUERY_BLOCK
) -> Tensor:
    """Attention output [B, L, Q, d], in time and memory linear in L.

    The g query heads of a KV head are folded into the query axis, so K and V are never repeated.
    """
    heads, length = key_BHLd.shape[1:3]
    query_BHgLd = query_BQLd.unflatten(1, (heads, -1))
    group = query_BHgLd.shape[2]
    position_L = torch.arange(length, device=query_BQLd.device)
    blocks = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        first = max(0, start - window + 1)
        mask_ST = window_mask(position_L[start:stop], position_L[first:stop], window)
        output_BHsd = F.scaled_dot_product_attention(
            query_BHgLd[:, :, :, start:stop].flatten(2, 3),
            key_BHLd[:, :, first:stop],
            value_BHLd[:, :, first:stop],
            attn_mask=mask_ST.repeat(group, 1),
            scale=scaling,
        )
        blocks.append(output_BHsd.unflatten(2, (group, -1)))
    return torch.cat(blocks, dim=3).flatten(1, 2).transpose(1, 2)
