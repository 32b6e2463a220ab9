"""What an IndexMemCache holds after its first pass: the engine's ragged cache, with room that grows as it is needed.

Shapes: R rows, S columns read since the contexts, H KV heads, T tokens that a layer holds of a row, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from indexmem.engine.cache import RaggedCache
from indexmem.errors import UserError
from indexmem.eviction.context import RowCache
from indexmem.eviction.kept import ragged

FIRST_ROOM, MOST_ROOM = 64, 1024  # columns for new tokens: each time that they are full there are twice as many


class HeldRows:
    """Attends (a KVView) over what was kept and all that was read since."""

    def __init__(self, rows: Sequence[RowCache]) -> None:
        self.ragged = RaggedCache(rows, FIRST_ROOM, at_once=1)

    def open(self, valid_Rn: Tensor) -> None:
        """Make room for the next columns, each row's padding first."""
        new = valid_Rn.shape[1]
        if new > 1 and self.ragged.opened.filled:  # only what comes first behind kept tokens may be padded
            self._repack(new)
        elif self.ragged.free_columns < new:
            self._repack(max(new, min(2 * self.ragged.room, MOST_ROOM)))
        self.ragged.rings.widen(new)
        self.ragged.extend(valid_Rn)

    def forget(self, held_RS: Tensor, stays_RS: Tensor) -> None:
        """Drop tokens that were read since the contexts. Raises UserError where a window would miss them.

        `held_RS`: which columns are held as tokens; `stays_RS`: which of them stay.
        """
        if self.ragged.rings.layers:
            raise UserError(
                "attention_mask hides tokens that the cache holds, such as padding behind an answer that ended early. "
                "Windows of this model's sliding layers have no room for that: ask further questions row by row."
            )
        self._repack(self.ragged.room, [stays_S[held_S] for held_S, stays_S in zip(held_RS, stays_RS)])

    def store(self, layer: int, key_RHnd: Tensor, value_RHnd: Tensor, cache_kwargs: dict[str, Any] | None) -> None:
        self.ragged.update(key_RHnd, value_RHnd, layer, cache_kwargs)

    def attend(self, layer: int, query_RQnd: Tensor, key_RHnd: Tensor, value_RHnd: Tensor, scaling: float) -> Tensor:
        return self.ragged.attend(layer, query_RQnd, key_RHnd, value_RHnd, scaling)

    def lengths_LRH(self) -> Tensor:
        """Tokens of each head, by layer and row."""
        lengths_LN = self.ragged.lengths()
        return lengths_LN.unflatten(1, (-1, self.ragged.heads))

    def _repack(self, room: int, newest_R: Sequence[Tensor] | None = None) -> None:
        """Give all that stays `room` for new tokens; `newest_R`: of each row's newest tokens, which stay."""
        lengths_LRH = self.lengths_LRH()

        def stay(row: int, layer: int, keys_HTd: Tensor, values_HTd: Tensor) -> tuple[Tensor, Sequence[int]]:
            tokens = keys_HTd.shape[1]
            own_HT = torch.arange(tokens, device=keys_HTd.device) >= tokens - lengths_LRH[layer, row, :, None]
            if newest_R is not None:
                own_HT[:, tokens - len(newest_R[row]) :] &= newest_R[row]
            positions_HK, counts_H = ragged(own_HT)
            assert counts_H is not None
            return positions_HK, counts_H.tolist()

        self.ragged.repack(stay, room)
