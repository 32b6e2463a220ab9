"""max over queries of a causal score matrix, without ever building the matrix.

Shapes: B batch, G score rows (1, or KV heads), S queries, T keys; here S = T = L.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NEG_INF = float("-inf")
BLOCK_ELEMENTS = 2**20  # scores alive at once per (batch, row): bounds memory at O(L), keeps a block in cache on CPU


def causal_max(
    score_rows: Callable[[int, int], Tensor], lengths_B: Tensor, groups: int, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """Running maximum over queries: out[b, g, t] = max over t <= s < lengths[b] of A[b, g, s, t].

    `score_rows(start, stop)` returns A[B, G, start:stop, 0:stop] in fp32 or fp64; entries above the diagonal may hold
    anything. Memory is O(block * L).

    Returns the maxima [B, G, L] (-inf at padded keys t >= lengths[b]) and the winning queries [B, G, L] (int64; the
    key's own position at padded keys). Ties go to the earliest query.
    """
    batch, length = lengths_B.shape[0], int(lengths_B.max())
    block = block or max(16, min(length, BLOCK_ELEMENTS // max(length, 1)))
    device = lengths_B.device
    best_BGT = torch.full((batch, groups, length), NEG_INF, device=device)
    winner_BGT = torch.arange(length, device=device).expand(batch, groups, length).clone()
    shortest = int(lengths_B.min())
    for start in range(0, length, block):
        stop = min(start + block, length)
        scores_BGST = score_rows(start, stop)
        future_SS = torch.ones(stop - start, stop - start, dtype=torch.bool, device=device).triu(1)
        scores_BGST[..., start:stop].masked_fill_(future_SS, NEG_INF)
        if stop > shortest:
            padded_BS = torch.arange(start, stop, device=device) >= lengths_B[:, None]
            scores_BGST.masked_fill_(padded_BS[:, None, :, None], NEG_INF)
        values_BGT, rows_BGT = scores_BGST.max(dim=2)
        best_BGT = best_BGT.to(values_BGT.dtype)
        better_BGT = (values_BGT > best_BGT[..., :stop]) | values_BGT.isnan()  # NaN stays: nothing is above it
        best_BGT[..., :stop] = torch.where(better_BGT, values_BGT, best_BGT[..., :stop])
        winner_BGT[..., :stop] = torch.where(better_BGT, rows_BGT + start, winner_BGT[..., :stop])
    return best_BGT, winner_BGT
