"""From scores to kept tokens: one rule for every method.

Scores are compared in fp32; the first `sinks` tokens always come first; ties go to the earlier position. A ranking is
made once per method and layer, and every ratio keeps a prefix of it, so kept sets are nested. (Methods that share a
budget among heads keep what their rule gives each head: eviction/headwise.py.)
Shapes: H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ABOVE_WINDOW = 3.0  # above what `with_window` gives


class Kept(NamedTuple):
    """What a layer keeps of its context."""

    positions_HK: Tensor  # ascending, int64; a head's entries beyond its number repeat its last position
    counts_H: Tensor | None = None  # tokens of each head, int64; None: all K


def oldest_first(positions_HK: Tensor, counts_H: Tensor | None) -> Tensor:
    """A layer's kept positions with every head's last one in the last column: new tokens can follow.

    A head's entries before its own repeat its first one.
    """
    if counts_H is None:
        return positions_HK
    before_H1 = positions_HK.shape[1] - counts_H[:, None]
    column_HK = (torch.arange(positions_HK.shape[1], device=counts_H.device) - before_H1).clamp(min=0)
    return positions_HK.gather(1, column_HK)


def kept_count(tokens: int, ratio: float) -> int:
    """K = max(1, int(L (1 - r))): tokens kept per KV head when a fraction `ratio` is evicted (kvpress' rule)."""
    return max(1, int(tokens * (1 - ratio)))


def has_nan(scores_HL: Tensor) -> Tensor:
    """Whether scores cannot be ranked, as a tensor on their device: asking it is what waits for the device."""
    return torch.isnan(scores_HL).any()


def nan_error() -> ValueError:
    return ValueError("scores contain NaN; the method cannot rank tokens")


def comparable(scores_HL: Tensor, sinks: int, checked: bool = False) -> Tensor:
    """Scores as they are compared: fp32, sinks above all.

    Raises ValueError on NaN scores unless `checked`: the caller looks for them himself.
    """
    if not checked and has_nan(scores_HL):
        raise nan_error()
    scores = scores_HL.float().clone()
    scores[..., :sinks] = float("inf")
    return scores


def newest_above_all(age_T: Tensor) -> Tensor:
    """Numbers above every score that is finite in practice and below +inf, the higher the younger a token: fp32 [T].

    `age_T`: tokens that came after it, int. They are the largest finite numbers, so no scale of scores reaches them.
    """
    largest = torch.tensor(torch.finfo(torch.float32).max).view(torch.int32).to(age_T.device)
    return (largest - age_T.int()).view(torch.float32)


def with_window(scores_HL: Tensor, window: int) -> Tensor:
    """Scores in [0, 1] as fp32 with the last `window` tokens above them, from 2 to 3: the newer, the higher.

    A budget may be smaller than what a scorer protects; the oldest of it then go first. The same in all heads and
    layers, so that those that share a budget lose alike.
    """
    above_W = 2 + torch.arange(window, device=scores_HL.device) / max(1, window)
    rest = scores_HL.shape[-1] - window
    return torch.cat((scores_HL[..., :rest].float(), above_W.expand(*scores_HL.shape[:-1], window)), dim=-1)


def rank(scores_HL: Tensor, sinks: int, checked: bool = False) -> Tensor:
    """Positions from most to least worth keeping, int32 [H, L]. Raises ValueError on NaN scores unless `checked`."""
    return comparable(scores_HL, sinks, checked).argsort(dim=-1, descending=True, stable=True).int()


def keep(ranking_HL: Tensor, count: int) -> Tensor:
    """The `count` best positions of each head in ascending order, int64 [..., H, K]."""
    return ranking_HL[..., :count].long().sort(dim=-1).values
