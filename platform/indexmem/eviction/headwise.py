"""Budgets that heads share: which tokens of which head are kept, when each head may keep a different number.

Scores are `policy.comparable`: fp32, sinks at +inf. Ties go to the earlier position, then to the earlier head: where a
budget is smaller than what is protected, every head then loses as much.
Shapes: N layers, H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens, T
cached tokens, K kept tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.eviction.policy import Kept


def ragged(kept_HL: Tensor) -> Kept:
    """What is marked True, as positions. Every head must keep one token at least."""
    return ragged_layers(kept_HL[None])[0]


def ragged_layers(kept_NHL: Tensor) -> list[Kept]:
    """The same for N layers at once, each as wide as its own longest head."""
    counts_NH = kept_NHL.sum(dim=-1)
    fewest, *widths = torch.cat((counts_NH.amin()[None], counts_NH.amax(dim=1))).tolist()  # waits for the device once
    assert fewest > 0, "a head without tokens has no last position to repeat"
    marked_first_NHK = (~kept_NHL).byte().argsort(dim=-1, stable=True)[..., : max(widths)]
    column_NHK = torch.arange(max(widths), device=counts_NH.device).minimum(counts_NH[..., None] - 1)
    positions_NHK = marked_first_NHK.gather(-1, column_NHK)
    return [
        Kept(position_HK[:, :width], count_H) for position_HK, width, count_H in zip(positions_NHK, widths, counts_NH)
    ]


def best_of_all(scores_XL: Tensor, total: int, floor: int) -> Tensor:
    """Mark the `total` best (head, token) pairs, at least the `floor` best of each head: bool [..., X, L]."""
    heads, tokens = scores_XL.shape[-2:]
    assert heads * min(floor, tokens) <= total <= heads * tokens, "the budget covers every head's floor"
    scores_XL = scores_XL.masked_fill(places(scores_XL) < floor, float("inf"))
    threshold = scores_XL.flatten(-2).kthvalue(heads * tokens - total + 1, dim=-1).values[..., None, None]
    above_XL = scores_XL > threshold
    missing = total - above_XL.sum(dim=(-2, -1))
    tied_LX = (scores_XL == threshold).transpose(-2, -1)
    filled_LX = tied_LX & (tied_LX.flatten(-2).cumsum(dim=-1) <= missing[..., None]).view_as(tied_LX)
    return above_XL | filled_LX.transpose(-2, -1)


def best_of_held(scores_XT: Tensor, position_XT: Tensor, valid_XT: Tensor, total: int, floor: int) -> Tensor:
    """The same of heads that hold different tokens, False in `valid` where one holds none: bool [X, T].

    A head that holds less than `floor` keeps all of it. No score may be -inf.
    """
    scores_XT = scores_XT.masked_fill(~valid_XT, float("-inf"))
    scores_XT = scores_XT.masked_fill((places(scores_XT) < floor) & valid_XT, float("inf"))
    by_position = position_XT.flatten().argsort(stable=True)  # heads in their order at each position
    best = scores_XT.flatten()[by_position].argsort(descending=True, stable=True)[:total]
    marked = torch.zeros_like(by_position, dtype=torch.bool).scatter_(0, by_position[best], True)
    return marked.view_as(scores_XT)


def two_stages(first_HL: Tensor, second_HL: Tensor, sure_H: Tensor, counts_H: Tensor) -> Tensor:
    """Mark each head's `sure` best tokens by the first scores, then its best by the second, up to its count."""
    sure_HL = places(first_HL) < sure_H[:, None]
    return places(second_HL.masked_fill(sure_HL, float("inf"))) < counts_H[:, None]


def places(scores_HL: Tensor) -> Tensor:
    """The place of each token in its head's ranking, from 0: int64 [H, L]."""
    return scores_HL.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
