"""Attention in parts: over disjoint sets of tokens, each with its log-sum-exp, merged into one softmax. fp32.

Shapes: B rows, H KV heads, g query heads per KV head, Q = H g, T tokens, n queries, C context tokens, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.models.attention import LayerTap

AttentionPart = tuple[Tensor, Tensor]  # output [B, Q, n, d] and log-sum-exp [B, Q, n]
MASKED = -1e30  # finite, so that a part without any token merges as nothing instead of NaN


def partial_attention(
    query_BQnd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float, mask: Tensor | None = None
) -> AttentionPart:
    """Softmax attention over these tokens alone. `mask` is bool, broadcast to [B, H, g, n, T]; True attends."""
    kv_heads = key_BHTd.shape[1]
    query_BHgnd = query_BQnd.float().unflatten(1, (kv_heads, -1))
    logits = torch.einsum("bhgnd,bhtd->bhgnt", query_BHgnd, key_BHTd.float()) * scaling
    if mask is not None:
        logits = logits.masked_fill(~mask, MASKED)
    lse = logits.logsumexp(-1)
    output = torch.einsum("bhgnt,bhtd->bhgnd", (logits - lse[..., None]).exp(), value_BHTd.float())
    return output.flatten(1, 2), lse.flatten(1, 2)


def merge(*parts: AttentionPart) -> AttentionPart:
    """One softmax over the union: lse = log sum exp lse_i, o = sum exp(lse_i - lse) o_i."""
    lse = torch.stack([part[1] for part in parts]).logsumexp(0)
    output = sum((part[0] * (part[1] - lse).exp()[..., None] for part in parts), start=torch.zeros_like(parts[0][0]))
    return output, lse


def context_and_new(
    tap: LayerTap, context: int, asked: int, leaves_BHC: Tensor
) -> tuple[AttentionPart, AttentionPart, AttentionPart]:
    """Attention of the last `asked` tokens: over kept context, over what follows it (causal), over evicted context."""
    query_BQnd = tap.query_BQLd[:, :, -asked:]
    key, value = tap.key_BHLd, tap.value_BHLd
    new = key.shape[2] - context
    mask_BH11C = leaves_BHC[:, :, None, None, :]
    causal_nT = torch.ones(asked, new, dtype=torch.bool, device=key.device).tril(new - asked)
    kept = partial_attention(query_BQnd, key[:, :, :context], value[:, :, :context], tap.scaling, ~mask_BH11C)
    lost = partial_attention(query_BQnd, key[:, :, :context], value[:, :, :context], tap.scaling, mask_BH11C)
    own = partial_attention(query_BQnd, key[:, :, context:], value[:, :, context:], tap.scaling, causal_nT)
    return kept, own, lost
