"""The teacher: the backbone's own attention, pooled over queries, streamed in O(L) memory.

    T[s,t]    = q_s . k_t * scale                  (after RoPE)
    target[t] = max over s >= t of reduce over heads of  T[s,t]                          (source `logits`, as printed)
                                                    or of T[s,t] - logsumexp_t T[s,:]     (source `logprobs`)
              = max over s in the second reading of t's chunk of the latter               (source `reconstruction`)

Attention while a text is read for the first time does not show what a later question needs; attention while it is
repeated does (KVzip, arXiv 2505.23416). The second reading is models/rereading.py's.
Shapes: B batch, Q query heads, H KV heads, g query heads per KV head, G score rows, S queries, T keys, d head_dim; R
chunks of the second reading of up to W tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.config.modules import TargetConfig
from indexmem.eviction.streaming import NEG_INF, causal_max
from indexmem.kernels.dispatch import can_run
from indexmem.models.rereading import Reread


def target_scale(config: TargetConfig, backbone_scale: float, attention_width: int) -> float:
    """`head`: the backbone's own 1/sqrt(head_dim); `model`: 1/sqrt(d), as the paper prints it."""
    return backbone_scale if config.scale == "head" else attention_width**-0.5


@torch.no_grad()
def reconstruction_target(
    again: Reread,
    key_BHLd: Tensor,
    *,
    rows: int,
    scale: float,
    heads: str = "max",
    normalised: bool = True,
    block: int | None = None,
) -> Tensor:
    """Target [B, rows, L], fp32 or wider; -inf at padded keys. `rows` is 1 (over all heads) or the number of KV heads.

    The keys are the first reading's, the queries those of the second, a chunk's for its own keys, with what stands
    before it. `normalised` False pools the logits. A kernel does the work on a GPU, unless a block is given.
    """
    if block is None and can_run(again.query_RQWd, key_BHLd):
        from indexmem.kernels.reread_max import reread_max  # needs Triton

        return reread_max(again, key_BHLd, rows=rows, scale=scale, mean=heads == "mean", normalised=normalised)
    wide = torch.promote_types(key_BHLd.dtype, torch.float32)
    batch, kv_heads, length, _ = key_BHLd.shape
    target_BGT = torch.full((batch, rows, length), NEG_INF, dtype=wide, device=key_BHLd.device)
    for chunk, query_QWd, lse_QW in zip(again.chunks, again.query_RQWd, again.lse_RQW):
        key_H1dT = key_BHLd[chunk.document, :, None, chunk.start : chunk.stop].to(wide).mT
        query_HgWd = query_QWd[:, : chunk.tokens].to(wide).unflatten(0, (kv_heads, -1))
        lse_HgW1 = lse_QW[:, : chunk.tokens, None].unflatten(0, (kv_heads, -1))
        best_GT = target_BGT[chunk.document, :, chunk.start : chunk.stop]
        step = block or max(8, 2**17 // (chunk.stop - chunk.start))
        for start in range(0, chunk.tokens, step):
            logits_HgST = query_HgWd[:, :, start : start + step] @ key_H1dT * scale
            if normalised:
                logits_HgST -= lse_HgW1[:, :, start : start + step]
            grouped = logits_HgST.flatten(0, 1).unflatten(0, (rows, -1))
            pooled_GST = grouped.amax(dim=1) if heads == "max" else grouped.mean(dim=1)
            torch.maximum(best_GT, pooled_GST.amax(dim=1), out=best_GT)
    return target_BGT


@torch.no_grad()
def pooled_target(
    query_BQLd: Tensor,
    key_BHLd: Tensor,
    lengths_B: Tensor,
    *,
    rows: int,
    scale: float,
    config: TargetConfig,
    lse_BQL: Tensor | None = None,
    block: int | None = None,
) -> Tensor:
    """Target [B, rows, L], fp32; -inf at padded keys. `rows` is 1 (over all heads) or the number of KV heads.

    `lse_BQL` saves source `logprobs` its first pass: the log-sum-exp of the causal rows at this scale, if it is known.
    Kernels do the work on a GPU (unless a block of queries is given), else blocks of queries do.
    """
    if config.source == "logits":
        lse_BQL = None
    if block is None and can_run(query_BQLd, key_BHLd):
        return _by_kernels(query_BQLd, key_BHLd, lengths_B, rows, scale, config, lse_BQL)
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
        if lse_BQL is not None:
            logits -= lse_BQL[:, :, start:stop].unflatten(1, (kv_heads, -1)).unsqueeze(-1)
        elif config.source == "logprobs":
            future = torch.ones(stop - start, stop - start, dtype=torch.bool, device=logits.device).triu(1)
            logits[..., start:].masked_fill_(future, NEG_INF)
            logits -= logits.logsumexp(dim=-1, keepdim=True)
        per_row = logits.reshape(logits.shape[0], rows, -1, stop - start, stop)
        return per_row.amax(dim=2) if config.heads == "max" else per_row.mean(dim=2)

    return causal_max(score_rows, lengths_B, rows, block)[0]


def _by_kernels(
    query_BQLd: Tensor,
    key_BHLd: Tensor,
    lengths_B: Tensor,
    rows: int,
    scale: float,
    config: TargetConfig,
    lse_BQL: Tensor | None,
) -> Tensor:
    from indexmem.kernels.row_lse import row_lse  # need Triton
    from indexmem.kernels.teacher_max import teacher_max

    if lse_BQL is None and config.source == "logprobs":
        lse_BQL = row_lse(query_BQLd, key_BHLd, lengths_B, scale)
    return teacher_max(
        query_BQLd, key_BHLd, lengths_B, rows=rows, scale=scale, mean=config.heads == "mean", lse_BQL=lse_BQL
    )
