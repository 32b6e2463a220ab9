"""Whose budget a head's tokens come out of: its own, its layer's, or that of the whole model.

Few heads retrieve. Where heads share a budget, those get more of it, if scores compare between heads.
Shapes: N layers, H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens, T
cached tokens, in layers together padded on the left to the longest head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.config.modules import Across
from indexmem.eviction.headwise import best_of_all, best_of_held, ragged, ragged_layers
from indexmem.eviction.policy import Kept, comparable, has_nan, keep, nan_error, rank

ROUNDING = 1e-6  # 240 (1 - 0.9) is 23.999999999999996, and means 24


@dataclass(frozen=True)
class Scored:
    """What a layer holds of a growing cache, oldest first, heads that hold fewer padded on the left."""

    scores_HT: Tensor
    position_HT: Tensor
    lengths_H: Sequence[int]


@dataclass(frozen=True)
class Sharing:
    """Keeps the best tokens of each head, or the best (head, token) pairs of a layer or of all layers.

    Heads that share keep different numbers of tokens: each at least `floor` of what an even split would give it, and
    one token. `floor=1` is an even split, `floor=0` none at all. Of every `alike` layers that get the same scores all
    keep the same tokens, so that the one that owns the scores can rank them again: a tie between them goes to none.
    """

    across: Across = "head"
    floor: float = 0.0
    alike: int = field(default=1, kw_only=True)

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
        marked_NHL = self.mark(torch.cat(list(rankings)), tokens, target).unflatten(0, (layers, heads))
        return ragged_layers(self.together(marked_NHL))

    def choose_held(self, held: Sequence[Scored], budget: int, always: int) -> list[Kept]:
        """What each layer keeps of a cache that has grown, where heads share `budget` tokens each.

        Every head keeps its `always` best, or all that it holds. Scores are finite, or +inf for what must stay. Raises
        ValueError on NaN scores.
        """
        assert not self.is_even, "an even split needs no view of other heads"
        longest = max(layer.scores_HT.shape[1] for layer in held)
        gaps = [longest - layer.scores_HT.shape[1] for layer in held]
        scores_NHT = torch.stack([F.pad(layer.scores_HT, (gap, 0)) for layer, gap in zip(held, gaps)])
        if has_nan(scores_NHT):
            raise nan_error()
        position_NHT = torch.stack([F.pad(layer.position_HT, (gap, 0)) for layer, gap in zip(held, gaps)])
        length_NH = torch.tensor([layer.lengths_H for layer in held], device=scores_NHT.device)
        valid_NHT = torch.arange(longest, device=scores_NHT.device) >= longest - length_NH[..., None]
        floor = max(always, int(self.floor * budget + ROUNDING), 1)
        marked, size = [], 1 if self.across == "layer" else len(held)  # layers that share a budget
        for first in range(0, len(held), size):
            group = slice(first, first + size)
            lengths = [length for layer in held[group] for length in layer.lengths_H]
            scores_XT, position_XT, valid_XT = (x[group].flatten(0, 1) for x in (scores_NHT, position_NHT, valid_NHT))
            total = min(len(lengths) * budget, sum(lengths))
            marked.append(best_of_held(scores_XT, position_XT, valid_XT, total, floor))
        kept = ragged_layers(self.together(torch.cat(marked).view_as(valid_NHT)))
        return [Kept(positions_HK - gap, counts_H) for (positions_HK, counts_H), gap in zip(kept, gaps)]

    def together(self, marked_NHL: Tensor) -> Tensor:
        """What all of each `alike` layers keep, [N, ..., H, L]. Only ties at the edge of the budget tell them apart."""
        if self.alike == 1 or self.across == "layer":
            return marked_NHL
        groups = marked_NHL.split(self.alike)
        return torch.cat([group.all(dim=0, keepdim=True).expand_as(group) for group in groups])


EVEN = Sharing()
