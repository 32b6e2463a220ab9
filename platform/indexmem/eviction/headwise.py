"""Budgets that heads share: which tokens of which head are kept, when each head may keep a different number.

Scores are `policy.comparable`: fp32, sinks at +inf. Ties go to the earlier position, then to the earlier head: where a
budget is smaller than what is protected, every head then loses as much.
Shapes: H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens, K kept tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.eviction.policy import Kept


def ragged(kept_HL: Tensor) -> Kept:
    """What is marked True, as positions. Every head must keep one token at least."""
    counts_H = kept_HL.sum(dim=1)
    assert bool((counts_H > 0).all()), "a head without tokens has no last position to repeat"
    width = int(counts_H.max())
    marked_first_HK = (~kept_HL).byte().argsort(dim=1, stable=True)[:, :width]
    column_HK = torch.arange(width, device=counts_H.device).minimum(counts_H[:, None] - 1)
    return Kept(marked_first_HK.gather(1, column_HK), counts_H)


def best_of_all(scores_XL: Tensor, total: int, floor: int) -> Tensor:
    """Mark the `total` best (head, token) pairs, at least the `floor` best of each head: bool [X, L]."""
    heads, tokens = scores_XL.shape
    assert heads * min(floor, tokens) <= total <= heads * tokens, "the budget covers every head's floor"
    scores_XL = scores_XL.masked_fill(places(scores_XL) < floor, float("inf"))
    threshold = scores_XL.flatten().kthvalue(heads * tokens - total + 1).values
    above_XL = scores_XL > threshold
    tied_LX = (scores_XL == threshold).T
    missing = total - above_XL.sum()
    filled_LX = tied_LX & (tied_LX.flatten().cumsum(0) <= missing).view_as(tied_LX)
    return above_XL | filled_LX.T


def two_stages(first_HL: Tensor, second_HL: Tensor, sure_H: Tensor, counts_H: Tensor) -> Tensor:
    """Mark each head's `sure` best tokens by the first scores, then its best by the second, up to its count."""
    sure_HL = places(first_HL) < sure_H[:, None]
    return places(second_HL.masked_fill(sure_HL, float("inf"))) < counts_H[:, None]


def places(scores_HL: Tensor) -> Tensor:
    """The place of each token in its head's ranking, from 0: int64 [H, L]."""
    return scores_HL.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
