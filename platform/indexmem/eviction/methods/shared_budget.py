"""Methods whose budget belongs to several heads together, who then keep different numbers of tokens.

Shapes: H KV heads of a layer, X heads that share a budget (of one layer, or of all), L context tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from indexmem.eviction.headwise import best_of_all, ragged, ragged_layers
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.policy import Kept, comparable

ROUNDING = 1e-6  # 240 (1 - 0.9) is 23.999999999999996, and means 24


class SharedBudget(EvictionMethod):
    """Keeps the best (head, token) pairs of a layer, or of all layers together; of each head one token at least."""

    across_layers = False

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """The scores themselves: what a head gets depends on how they compare with other heads'."""
        return comparable(scores_HL, sinks, checked=True)

    def share(self, ranking: Tensor, tokens: int, target: float) -> Tensor:
        """Mark what X heads keep of a budget of `target` tokens each, bool [X, L], from what `rank` made of them.

        With a leading dimension for layers, unless all layers share one budget.
        """
        return best_of_all(ranking, self.pairs(ranking.shape[-2], tokens, target), floor=1)

    def pairs(self, heads: int, tokens: int, target: float) -> int:
        """(head, token) pairs that so many heads keep together: one of each head at least, all at most."""
        pairs = int(heads * (target + self.extra_tokens) + ROUNDING)
        return max(heads, min(heads * tokens, pairs))

    def choose_layer(self, ranking: Tensor, tokens: int, target: float, layer: int, layers: int) -> Kept:
        return ragged(self.share(ranking, tokens, target))

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        layers, heads = len(rankings), len(rankings[0])
        if not self.across_layers:
            return ragged_layers(self.share(torch.stack(list(rankings)), tokens, target))
        return ragged_layers(self.share(torch.cat(list(rankings)), tokens, target).unflatten(0, (layers, heads)))
