"""How many tokens each head keeps, and which: from a method's scores and a budget to kept positions.

A budget is `target` tokens per KV head, in the mean over the heads of all layers; it need not be whole. `PerHead` gives
every head as many. `Shared` lets heads compete: few heads retrieve, and get more of a shared budget if scores compare
between heads. What a method decides in another way is a subclass, beside that method.
Shapes: N layers, H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens, T
cached tokens, in layers together padded on the left to the longest head.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.config.modules import Across
from indexmem.eviction.kept import Kept, ragged_layers
from indexmem.eviction.ranking import best_of_all, best_of_held, comparable, has_nan, keep, nan_error, rank

BUDGET_TOLERANCE = 1e-6  # of products and quotients of budgets: 240 (1 - 0.9) is 23.999999999999996, and means 24


def whole_tokens(target: float, tokens: int = sys.maxsize) -> int:
    """Tokens that a head keeps of a budget of its own: rounded down, one at least, all at most (kvpress' rule)."""
    return max(1, min(tokens, int(target)))


def tokens_left(tokens: int, ratio: float) -> int:
    """Tokens that a head keeps when a share `ratio` of its own is evicted."""
    return whole_tokens(tokens * (1 - ratio), tokens)


def whole_pairs(pairs: float) -> int:
    """(head, token) pairs of a budget that heads share: rounded down to within `BUDGET_TOLERANCE`."""
    return int(pairs + BUDGET_TOLERANCE)


@dataclass(frozen=True)
class GrownLayer:
    """Scores of what a layer holds of a growing cache, oldest first, heads that hold fewer padded on the left."""

    scores_HT: Tensor
    position_HT: Tensor
    lengths_H: Sequence[int]


@dataclass(frozen=True)
class GrownLayers:
    """Layers of a growing cache side by side, all heads padded on the left to the longest of all."""

    scores_NHT: Tensor
    position_NHT: Tensor
    valid_NHT: Tensor  # False where a head is padded
    gaps: Sequence[int]  # columns that were put before each layer's own

    @classmethod
    def of(cls, grown: Sequence[GrownLayer]) -> GrownLayers:
        longest, device = max(layer.scores_HT.shape[1] for layer in grown), grown[0].scores_HT.device
        gaps = [longest - layer.scores_HT.shape[1] for layer in grown]
        scores_NHT = torch.stack([F.pad(layer.scores_HT, (gap, 0)) for layer, gap in zip(grown, gaps)])
        position_NHT = torch.stack([F.pad(layer.position_HT, (gap, 0)) for layer, gap in zip(grown, gaps)])
        length_NH = torch.tensor([layer.lengths_H for layer in grown], device=device)
        valid_NHT = torch.arange(longest, device=device) >= longest - length_NH[..., None]
        return cls(scores_NHT, position_NHT, valid_NHT, gaps)

    def kept(self, marked_NHT: Tensor) -> list[Kept]:
        """What is marked, as columns of each layer's own."""
        layers = zip(ragged_layers(marked_NHT), self.gaps)
        return [Kept(positions_HK - gap, counts_H) for (positions_HK, counts_H), gap in layers]


@dataclass(frozen=True)
class Selection(ABC):
    """How a method's budget is spent on heads and tokens.

    `rank` is asked once for each layer of a context, `choose` once for each budget.
    """

    across: Across = "head"  # which heads share a budget: none, those of a layer, or all of the model

    @property
    def shares(self) -> bool:
        """Whether heads share a budget, and keep different numbers of tokens."""
        return self.across != "head"

    @property
    def slack(self) -> float:
        """Tokens per head, in the mean, by which rounding may miss a budget."""
        return 0.0

    @property
    def step(self) -> int:
        """Tokens that come and go together: a budget is filled to within less than so many per head."""
        return 1

    @abstractmethod
    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """What `choose` needs of a layer's scores, for any budget. Held until all cells of the context are compressed.

        Layers may come together, in a first dimension. Scores hold no NaN: the caller has checked.
        """

    @abstractmethod
    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        """What each layer keeps of its `tokens` tokens; `rankings`: what `rank` made of each layer's scores."""

    def choose_grown(self, grown: Sequence[GrownLayer], budget: int, always: int) -> list[Kept]:
        """What each layer keeps of a cache that has grown, of `budget` tokens per head.

        Every head keeps its `always` best, or all that it holds. Scores are finite, or +inf for what must stay. Raises
        ValueError on NaN scores. Only methods that rank while decoding need it.
        """
        raise NotImplementedError(f"{type(self).__name__} chooses from a whole context")

    def of_layer(self, layer: int, layers: int) -> Selection:
        """The selection of one of `layers` layers by itself: its `choose` gets the ranking of this layer alone."""
        return self


@dataclass(frozen=True)
class PerHead(Selection):
    """The best tokens of each head, as many in all heads of a layer.

    A ranking is made once, and every budget keeps a prefix of it: kept sets are nested.
    """

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """Positions, best first, int32 [H, L]."""
        return rank(scores_HL, sinks, assume_no_nan=True)

    def count(self, tokens: int, target: float, layer: int, layers: int) -> int:
        """Tokens that each head of this layer keeps."""
        return whole_tokens(target, tokens)

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        counts = [self.count(tokens, target, layer, len(rankings)) for layer in range(len(rankings))]
        if len(set(counts)) > 1:
            return [Kept(keep(ranking_HL, count)) for ranking_HL, count in zip(rankings, counts)]
        best_NHK = torch.stack([ranking_HL[:, : counts[0]] for ranking_HL in rankings])  # all layers by one sort
        return [Kept(positions_HK) for positions_HK in keep(best_NHK, counts[0])]

    def choose_grown(self, grown: Sequence[GrownLayer], budget: int, always: int) -> list[Kept]:
        return [Kept(keep(rank(layer.scores_HT, sinks=0), budget)) for layer in grown]


@dataclass(frozen=True)
class Shared(Selection):
    """The best (head, token) pairs of a layer, or of all layers.

    Each head keeps at least `floor` of what an even split would give it, and one token. `floor=1` is an even split,
    `floor=0` none at all. Of every `alike` layers that get the same scores all keep the same tokens, so that the one
    that owns the scores can rank them again: a tie between them goes to none.
    """

    floor: float = 0.0
    alike: int = field(default=1, kw_only=True)

    @property
    def slack(self) -> float:
        return float(self.alike > 1)  # ties that are left out

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """The scores themselves, [H, L]: what a head gets depends on how they compare with other heads'."""
        return comparable(scores_HL, sinks, assume_no_nan=True)

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        if self.across == "layer":
            return ragged_layers(self.mark(torch.stack(list(rankings)), tokens, target))
        marked_XL = self.mark(torch.cat(list(rankings)), tokens, target)
        return ragged_layers(self.together(marked_XL.unflatten(0, (len(rankings), -1))))

    def mark(self, ranking_XL: Tensor, tokens: int, target: float) -> Tensor:
        """Which pairs of X heads stay of a budget of `target` tokens each, bool [..., X, L]."""
        heads = ranking_XL.shape[-2]
        pairs = self.pairs(heads, tokens, target)
        return best_of_all(ranking_XL, pairs, floor=max(1, whole_pairs(self.floor * (pairs // heads))))

    def pairs(self, heads: int, tokens: int, target: float) -> int:
        """(head, token) pairs that so many heads keep together: one of each head at least, all at most."""
        return max(heads, min(heads * tokens, whole_pairs(heads * target)))

    def together(self, marked_NHL: Tensor) -> Tensor:
        """What all of each `alike` layers keep, [N, ..., H, L]. Only ties at the edge of the budget tell them apart."""
        if self.alike == 1 or self.across == "layer":
            return marked_NHL
        groups = marked_NHL.split(self.alike)
        return torch.cat([group.all(dim=0, keepdim=True).expand_as(group) for group in groups])

    def choose_grown(self, grown: Sequence[GrownLayer], budget: int, always: int) -> list[Kept]:
        held = GrownLayers.of(grown)
        if has_nan(held.scores_NHT):
            raise nan_error()
        floor = max(always, whole_pairs(self.floor * budget), 1)
        marked, size = [], 1 if self.across == "layer" else len(grown)  # layers that share a budget
        for first in range(0, len(grown), size):
            group = slice(first, first + size)
            lengths = [length for layer in grown[group] for length in layer.lengths_H]
            scores_XT, position_XT, valid_XT = (
                x[group].flatten(0, 1) for x in (held.scores_NHT, held.position_NHT, held.valid_NHT)
            )
            total = min(len(lengths) * budget, sum(lengths))
            marked.append(best_of_held(scores_XT, position_XT, valid_XT, total, floor))
        return held.kept(self.together(torch.cat(marked).view_as(held.valid_NHT)))


PER_HEAD = PerHead()
