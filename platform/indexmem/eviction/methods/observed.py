"""Mean received attention, as H2O accumulates it, from a tap instead of stored attention weights.

Shapes: B batch, H KV heads, g query heads per KV head, L context tokens, S queries of a block, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.eviction.methods.base import EvictionMethod
from indexmem.models.attention import LayerTap

BLOCK_LOGITS = 2**25  # logits held at once: 128 MiB in fp32


class ObservedAttention(EvictionMethod):
    """Attention that a token receives from the context's queries (related to H2O, arXiv 2306.14048).

        score[t] = mean_g sum_s softmax_t(q_s . k_t scaling) / (L - t),   pos(t) <= pos(s)

    Divided by the L - t queries that see the token, so that early ones have no advantage.
    """

    def score(self, tap: LayerTap) -> Tensor:
        batch, heads, length, _ = tap.key_BHLd.shape
        query_BHgLd = tap.query_BQLd.unflatten(1, (heads, -1))
        group = query_BHgLd.shape[2]
        block = max(1, BLOCK_LOGITS // (batch * heads * group * length))
        position_L = torch.arange(length, device=tap.key_BHLd.device)
        received_BHL = tap.key_BHLd.new_zeros((batch, heads, length), dtype=torch.float32)
        for start in range(0, length, block):
            stop = min(start + block, length)
            folded_BHsd = query_BHgLd[:, :, :, start:stop].flatten(2, 3)
            logits_BHsT = (folded_BHsd @ tap.key_BHLd[:, :, :stop].transpose(-1, -2)).float() * tap.scaling
            future_ST = position_L[:stop] > position_L[start:stop, None]
            attention = logits_BHsT.masked_fill_(future_ST.repeat(group, 1), float("-inf")).softmax(dim=-1)
            received_BHL[:, :, :stop] += attention.sum(dim=2)
        return received_BHL / group / (length - position_L)
