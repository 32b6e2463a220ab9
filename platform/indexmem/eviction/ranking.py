"""Which tokens are worth keeping: scores to an order of tokens, and the best of some heads together.

Scores are compared in fp32. The first `sinks` tokens are at +inf, and ties go to the earlier position, then to the
earlier head: where a budget is smaller than what is protected, every head then loses as much.
Shapes: H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens, T cached tokens,
K kept tokens, U blocks of tokens, P pairs of head and block.
"""

from __future__ import annotations

import torch
from torch import Tensor

ABOVE_WINDOW = 3.0  # above what `with_window` gives


def has_nan(scores_HL: Tensor) -> Tensor:
    """Whether scores cannot be ranked, as a tensor on their device: reading its value waits for the device."""
    return torch.isnan(scores_HL).any()


def nan_error() -> ValueError:
    return ValueError("scores contain NaN; the method cannot rank tokens")


def comparable(scores_HL: Tensor, sinks: int, assume_no_nan: bool = False) -> Tensor:
    """Scores as they are compared: fp32, sinks at +inf.

    Raises ValueError on NaN scores. With `assume_no_nan` the caller checks them, with `has_nan`.
    """
    if not assume_no_nan and has_nan(scores_HL):
        raise nan_error()
    scores = scores_HL.float().clone()
    scores[..., :sinks] = float("inf")
    return scores


def rank(scores_HL: Tensor, sinks: int, assume_no_nan: bool = False) -> Tensor:
    """Positions from most to least worth keeping, int32 [H, L]. NaN: as in `comparable`."""
    return comparable(scores_HL, sinks, assume_no_nan).argsort(dim=-1, descending=True, stable=True).int()


def keep(ranking_HL: Tensor, count: int) -> Tensor:
    """The `count` best positions of each head in ascending order, int64 [..., H, K]."""
    return ranking_HL[..., :count].long().sort(dim=-1).values


def order_numbers(scores_HL: Tensor) -> Tensor:
    """Each token's number in its head's ranking, the best is 0: int64 [H, L]."""
    return scores_HL.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def newest_above_all(age_T: Tensor) -> Tensor:
    """Numbers above every score that is finite in practice and below +inf, the higher the younger a token: fp32 [T].

    `age_T`: tokens that came after it, int. They are the largest finite numbers, so no scale of scores reaches them.
    """
    largest = torch.tensor(torch.finfo(torch.float32).max).view(torch.int32).to(age_T.device)
    return (largest - age_T.int()).view(torch.float32)


def with_window(scores_HL: Tensor, window: int) -> Tensor:
    """Scores in [0, 1] as fp32 with the last `window` tokens above them, from 2 to 3: the newer, the higher.

    A budget may be smaller than what a scorer protects; the oldest of it then go first. All heads and layers get the
    same numbers, so that those that share a budget lose alike.
    """
    above_W = 2 + torch.arange(window, device=scores_HL.device) / max(1, window)
    rest = scores_HL.shape[-1] - window
    return torch.cat((scores_HL[..., :rest].float(), above_W.expand(*scores_HL.shape[:-1], window)), dim=-1)


def best_of_all(scores_XL: Tensor, total: int, floor: int) -> Tensor:
    """Mark the `total` best (head, token) pairs, at least the `floor` best of each head: bool [..., X, L]."""
    heads, tokens = scores_XL.shape[-2:]
    assert heads * min(floor, tokens) <= total <= heads * tokens, "the budget covers every head's floor"
    scores_XL = scores_XL.masked_fill(order_numbers(scores_XL) < floor, float("inf"))
    threshold = scores_XL.flatten(-2).kthvalue(heads * tokens - total + 1, dim=-1).values[..., None, None]
    above_XL = scores_XL > threshold
    missing = total - above_XL.sum(dim=(-2, -1))
    tied_LX = (scores_XL == threshold).transpose(-2, -1)
    filled_LX = tied_LX & (tied_LX.flatten(-2).cumsum(dim=-1) <= missing[..., None]).view_as(tied_LX)
    return above_XL | filled_LX.transpose(-2, -1)


def best_of_held(scores_XT: Tensor, position_XT: Tensor, valid_XT: Tensor, total: int, floor: int) -> Tensor:
    """As `best_of_all` for heads that hold different tokens, False in `valid` where one holds none: bool [X, T].

    A head that holds less than `floor` keeps all of it. No score may be -inf.
    """
    scores_XT = scores_XT.masked_fill(~valid_XT, float("-inf"))
    scores_XT = scores_XT.masked_fill((order_numbers(scores_XT) < floor) & valid_XT, float("inf"))
    by_position = position_XT.flatten().argsort(stable=True)  # heads in their order at each position
    best = scores_XT.flatten()[by_position].argsort(descending=True, stable=True)[:total]
    marked = torch.zeros_like(by_position, dtype=torch.bool).scatter_(0, by_position[best], True)
    return marked.view_as(scores_XT)


def best_blocks(worth_XU: Tensor, size_XU: Tensor, total: int, floor: int) -> Tensor:
    """Mark the best (head, block) pairs, best first, until the next one has more tokens than are left of `total`.

    A head's best blocks of `floor` tokens together come before all others, and one in any case. Ties go to the earlier
    block, then to the earlier head. Bool [..., X, U].
    """
    order_XU = worth_XU.argsort(dim=-1, descending=True, stable=True)
    safe_XU = size_XU.gather(-1, order_XU).cumsum(dim=-1) <= floor
    safe_XU[..., 0] = True
    worth_XU = worth_XU.masked_fill(torch.zeros_like(safe_XU).scatter(-1, order_XU, safe_XU), float("inf"))
    worth_P, size_P = (x.transpose(-2, -1).flatten(-2) for x in (worth_XU, size_XU))  # heads in turn at each block
    best_P = worth_P.argsort(dim=-1, descending=True, stable=True)
    fits_P = size_P.gather(-1, best_P).cumsum(dim=-1) <= total
    marked_P = torch.zeros_like(fits_P).scatter(-1, best_P, fits_P)
    return marked_P.unflatten(-1, (worth_XU.shape[-1], -1)).transpose(-2, -1)


def two_stages(first_HL: Tensor, second_HL: Tensor, sure_H: Tensor, counts_H: Tensor) -> Tensor:
    """Mark each head's `sure` best tokens by the first scores, then its best by the second, up to its count."""
    sure_HL = order_numbers(first_HL) < sure_H[:, None]
    return order_numbers(second_HL.masked_fill(sure_HL, float("inf"))) < counts_H[:, None]
