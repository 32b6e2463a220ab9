"""Where in the text a row's cached tokens come from.

Shapes: H KV heads, T cached tokens of the head that holds most, K kept ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from indexmem.eviction.context import RowCache


@dataclass(frozen=True)
class HeldPositions:
    """Positions of the tokens that a row holds in a layer, ascending; a head that holds fewer than T repeats its first
    one before it."""

    position_HT: Tensor
    lengths_H: Sequence[int]

    @classmethod
    def of(cls, row: RowCache, layer: int) -> Self:
        """What is kept of a context."""
        return cls(row.oldest_first(layer), row.lengths(layer))

    @property
    def is_even(self) -> bool:
        """Whether all heads hold as many."""
        return len(set(self.lengths_H)) == 1

    @cached_property
    def valid_HT(self) -> Tensor:
        """False where a head repeats."""
        longest, device = self.position_HT.shape[1], self.position_HT.device
        if self.is_even:
            return torch.ones_like(self.position_HT, dtype=torch.bool)
        length_H1 = torch.tensor(self.lengths_H, device=device)[:, None]
        return torch.arange(longest, device=device) >= longest - length_H1

    def up_to(self, following: int, tokens: int) -> HeldPositions:
        """With all tokens from position `following` on in every head: `tokens` columns in all."""
        new = tokens - self.position_HT.shape[1]
        new_n = following + torch.arange(new, device=self.position_HT.device)
        position_HT = torch.cat((self.position_HT, new_n.expand(len(self.position_HT), -1)), dim=1)
        return HeldPositions(position_HT, [length + new for length in self.lengths_H])

    def only(self, columns_HK: Tensor, lengths_H: Sequence[int]) -> HeldPositions:
        """The tokens in these columns."""
        return HeldPositions(self.position_HT.gather(1, columns_HK), lengths_H)
