"""Whose budget a head's tokens come out of: its own, its layer's, or that of the whole model.

Few heads retrieve. Where heads share a budget, those get more of it, if scores compare between heads.
Shapes: N layers, H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from indexmem.config.modules import Across
from indexmem.eviction.headwise import best_of_all, ragged, ragged_layers
from indexmem.eviction.policy import Kept, comparable, keep, rank

ROUNDING = 1e-6  # 240 (1 - 0.9) is 23.999999999999996, and means 24


@dataclass(frozen=True)
class Sharing:
    """Keeps the best tokens of each head, or the best (head, token) pairs of a layer or of all layers.

    Heads that share keep different numbers of tokens: each at least `floor` of what an even split would give it, and
    one token. `floor=1` is an even split, `floor=0` none at all.
    """

    across: Across = "head"
    floor: float = 0.0

    @property
    def is_even(self) -> bool:
        """Whether all heads keep as many tokens."""
        return self.across == "head"

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """What is to be known of a layer's scores, for any budget: positions, best first, or the scores themselves.

        What a head gets of a shared budget depends on how its scores compare with other heads'.
        """
        return rank(scores_HL, sinks, checked=True) if self.is_even else comparable(scores_HL, sinks, checked=True)

    def mark(self, ranking_XL: Tensor, tokens: int, target: float) -> Tensor:
        """Which pairs of X heads stay of a budget of `target` tokens each, bool [..., X, L]."""
        heads = ranking_XL.shape[-2]
        pairs = self.pairs(heads, tokens, target)
        return best_of_all(ranking_XL, pairs, floor=max(1, int(self.floor * (pairs // heads) + ROUNDING)))

    def pairs(self, heads: int, tokens: int, target: float) -> int:
        """(head, token) pairs that so many heads keep together: one of each head at least, all at most."""
        return max(heads, min(heads * tokens, int(heads * target + ROUNDING)))

    def choose_layer(self, ranking: Tensor, tokens: int, target: float) -> Kept:
        """What one layer keeps by itself, from what `rank` made of its scores."""
        if self.is_even:
            return Kept(keep(ranking, max(1, min(tokens, int(target)))))
        return ragged(self.mark(ranking, tokens, target))

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        """What each layer keeps where heads share."""
        assert not self.is_even, "an even split needs no view of other heads"
        layers, heads = len(rankings), len(rankings[0])
        if self.across == "layer":
            return ragged_layers(self.mark(torch.stack(list(rankings)), tokens, target))
        return ragged_layers(self.mark(torch.cat(list(rankings)), tokens, target).unflatten(0, (layers, heads)))


EVEN = Sharing()
