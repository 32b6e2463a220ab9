"""The teacher: the backbone's own attention, pooled over queries, streamed in O(L) memory.

    T[s,t]    = q_s . k_t * scale                  (after RoPE)
    target[t] = max over s >= t of reduce over heads of  T[s,t]                          (source `logits`, as printed)
                                                    or of T[s,t] - logsumexp_t T[s,:]     (source `logprobs`)

Shapes: B batch, Q query heads, H KV heads, g query heads per KV head, G score rows, S queries, T keys, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.config.schema import TargetConfig
from indexmem.eviction.streaming import NEG_INF, causal_max


def target_scale(config: TargetConfig, backbone_scale: float, attention_width: int) -> float:
    """`head`: the backbone's own 1/sqrt(head_dim); `model`: 1/sqrt(d), as the paper prints it."""
    return backbone_scale if config.scale == "head" else attention_width**-0.5


@torch.no_grad()
def pooled_target(
    query_BQLd: Tensor,
    key_BHLd: Tensor,
    lengths_B: Tensor,
    *,
    rows: int,
    scale: float,
    config: TargetConfig,
    block: int | None = None,
) -> Tensor:
    """Target [B, rows, L], fp32; -inf at padded keys. `rows` is 1 (over all heads) or the number of KV heads."""
    kv_heads = key_BHLd.shape[1]
    query_BHgLd = query_BQLd.float().unflatten(1, (kv_heads, -1))
    key_BHdL = key_BHLd.float().transpose(-1, -2)
    length = int(lengths_B.max())
    block = block or max(8, min(128, length))

    def score_rows(start: int, stop: int) -> Tensor:
        # One flat matmul per KV head: its g query heads share the keys.
        query_BHgSd = query_BHgLd[:, :, :, start:stop]
        flat = query_BHgSd.flatten(2, 3) @ key_BHdL[..., :stop]
        logits = flat.mul_(scale).unflatten(2, (-1, stop - start))
        if config.source == "logprobs":
            future = torch.ones(stop - start, stop - start, dtype=torch.bool, device=logits.device).triu(1)
            logits[..., start:].masked_fill_(future, NEG_INF)
            logits -= logits.logsumexp(dim=-1, keepdim=True)
        per_row = logits.reshape(logits.shape[0], rows, -1, stop - start, stop)
        return per_row.amax(dim=2) if config.heads == "max" else per_row.mean(dim=2)

    return causal_max(score_rows, lengths_B, rows, block)[0]
