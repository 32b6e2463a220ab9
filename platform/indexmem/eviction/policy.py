"""From scores to kept tokens: one rule for every method.

Scores are compared in fp32; the first `sinks` tokens always come first; ties go to the earlier position. A ranking is
made once per method and layer, and every ratio keeps a prefix of it, so kept sets are nested.
Shapes: H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept_count(tokens: int, ratio: float) -> int:
    """K = max(1, int(L (1 - r))): tokens kept per KV head when a fraction `ratio` is evicted (kvpress' rule)."""
    return max(1, int(tokens * (1 - ratio)))


def rank(scores_HL: Tensor, sinks: int) -> Tensor:
    """Positions from most to least worth keeping, int32 [H, L]. Raises ValueError on NaN scores."""
    scores = scores_HL.float().clone()
    if torch.isnan(scores).any():
        raise ValueError("scores contain NaN; the method cannot rank tokens")
    scores[:, :sinks] = float("inf")
    return scores.argsort(dim=-1, descending=True, stable=True).int()


def keep(ranking_HL: Tensor, count: int) -> Tensor:
    """The `count` best positions of each head in ascending order, int64 [H, K]."""
    return ranking_HL[:, :count].long().sort(dim=-1).values
