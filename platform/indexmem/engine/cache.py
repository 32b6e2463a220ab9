"""A batch of compressed caches, ragged over rows, layers and heads, packed into static buffers.

Each bucket of lanes (lanes.py) holds kept K and V left-padded to its width, then room for new tokens; lane_attention.py
writes them and attends. Sizes only change from time to time, so that a decode step can be captured as a CUDA graph.
Padding and validity live here and nowhere on the model.
Layers with a sliding window are kept apart (rings.py) and never compressed; where transformers does not ask, `layer`
counts the others.
Shapes: R rows, H KV heads, N lanes, Q query heads, L tokens that K and V of a context hold, K kept tokens, I of all
rows and heads, n new tokens now, T tokens, d head_dim; C columns of all lanes in storage; of a bucket: N lanes, W its
width, T its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from transformers import Cache

from indexmem.engine.lane_attention import StoredLayer, lane_attention
from indexmem.engine.lanes import Bucket, Columns, LaneLayout, Opened, whole_columns
from indexmem.engine.memories import RowMemories
from indexmem.engine.rings import WindowRings
from indexmem.eviction.context import RowCache

# (row, layer, keys [H, T, d], values [H, T, d]) of a row's tokens -> which of them stay [H, K], and how many of each
# head; entries beyond that mean nothing. A head that holds fewer than T tokens repeats its first one before it.
Choose = Callable[[int, int, Tensor, Tensor], tuple[Tensor, Sequence[int]]]


@dataclass(frozen=True)
class Held:
    """What a row holds in a layer: some of the tokens of K and V."""

    keys_HLd: Tensor
    values_HLd: Tensor
    index_HK: Tensor  # which of the L; a head's entries beyond its length mean nothing
    lengths_H: Sequence[int]

    @classmethod
    def of(cls, row: RowCache, layer: int) -> Self:
        keys_HLd, index_HK = row.keys_HLd[layer], row.kept_HK[layer]
        if row.holds_kept_only:
            index_HK = torch.arange(keys_HLd.shape[1], device=keys_HLd.device).expand(keys_HLd.shape[:2])
        return cls(keys_HLd, row.values_HLd[layer], index_HK, row.lengths(layer))


class RaggedCache(Cache):
    """The cache that the model writes to (`past_key_values`) and attends with (`kv_view`)."""

    def __init__(self, rows: Sequence[RowCache], room: int, at_once: int | None = None) -> None:
        """`room`: tokens that will follow; `at_once`: the most of them in one forward pass (default: all)."""
        super().__init__(layers=[])
        first_HLd = rows[0].keys_HLd[0]
        self.device, self.dtype = first_HLd.device, first_HLd.dtype
        self.heads, self.dim = first_HLd.shape[0], first_HLd.shape[2]
        self.room = whole_columns(room)
        self.memories = RowMemories(rows, self.device)
        self.rings = WindowRings(rows, room if at_once is None else at_once)
        indices = range(len(rows[0].kept_HK) + len(self.rings.layers))
        full = [index for index in indices if index not in self.rings.layers]
        self._number = {index: layer for layer, index in enumerate(full)}  # the model's layer -> ours
        self._remembers_R = [row.memories is not None for row in rows]
        self._rotary: tuple[Tensor, Tensor] | None = None  # cos and sin of the new tokens' positions
        self._clear()
        for layer in range(len(rows[0].kept_HK)):
            self._add_layer([Held.of(row, layer) for row in rows])

    def _clear(self) -> None:
        """No layers, no new tokens."""
        self._open(Opened(len(self._remembers_R), self.room, self.device))
        self.newest_valid_Rn = torch.empty(0)  # which of the newest columns hold a real token
        self.stored: list[StoredLayer] = []  # by layer: K and V of all buckets, see Columns
        self.columns: list[Columns] = []  # by layer; layers whose lanes have the same lengths share one
        self._shared: dict[tuple[int, ...], Columns] = {}

    def _open(self, opened: Opened) -> None:
        self.opened = opened
        self._attention = lane_attention(opened, self.device, self.dtype, self.dim)

    def _add_layer(self, held_R: Sequence[Held]) -> None:
        """The next layer, from what each row holds in it."""
        length_N = tuple(length for held in held_R for length in held.lengths_H)
        if length_N not in self._shared:
            lengths_RH = [held.lengths_H for held in held_R]
            column_bytes = 2 * self.dim * self.dtype.itemsize
            layout = LaneLayout.of(lengths_RH, self._remembers_R, column_bytes, self.device)
            self._shared[length_N] = Columns(layout, length_N, self.room, self.device)
        columns = self._shared[length_N]
        self.columns.append(columns)
        self.stored.append(pack(columns, held_R))

    def extend(self, valid_Rn: Tensor) -> None:
        """Open columns for the next n tokens of each row; False marks a row's padding. Call before the model."""
        self.opened.extend(valid_Rn)
        self._attention.extend(valid_Rn.shape[1])
        self.rings.extend(valid_Rn)
        self.newest_valid_Rn = valid_Rn

    def update(self, key_states, value_states, layer_idx, cache_kwargs=None):  # type: ignore[no-untyped-def]
        """transformers' hook: store the new K and V [R, H, n, d] of a layer; `attend` finds them here."""
        if layer_idx in self.rings.layers:
            self.rings.store(layer_idx, key_states, value_states)
            return key_states, value_states
        layer = self._number[layer_idx]
        self._rotary = None if cache_kwargs is None else (cache_kwargs["cos"], cache_kwargs["sin"])
        self._attention.store(self.columns[layer], self.stored[layer], key_states, value_states)
        return key_states, value_states

    def attend(self, layer: int, query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, scaling: float) -> Tensor:
        """softmax(q k^T scaling + mask) v over valid columns, causal among the new tokens: [R, n, Q, d].

        K and V come from the buffers, the arguments are the new tokens' only; they are never repeated for the query
        heads of a KV head. Rows with a latent memory then get its part. `layer` counts all layers of the model.
        """
        if layer in self.rings.layers:
            return self.rings.attend(layer, query_BQLd, scaling)
        layer = self._number[layer]
        remembered = self.memories.any_in(layer)
        output_RQnd, lse_RQn = self._attention.attend(
            self.columns[layer], self.stored[layer], query_BQLd, scaling, wants_lse=remembered
        )
        if remembered:
            assert lse_RQn is not None
            output_RQnd = self.memories.read(layer, query_BQLd, output_RQnd, lse_RQn, self._rotary)
        return output_RQnd.transpose(1, 2)

    def keys_of(self, row: int, layer: int) -> Tensor:
        """Keys [H, T, d] of a row's tokens, as `repack` shows them."""
        keys_Cd, _ = self.stored[layer]
        return keys_Cd[self.columns[layer].present(row, self.opened)]

    def repack(self, choose: Choose, room: int | None = None) -> None:
        """Keep of each row and layer what `choose` says; new tokens then have `room` behind that (None: as before).

        Called layer by layer, rows in order.
        """
        if room is not None:
            self.room = whole_columns(room)
        old, opened = list(zip(self.columns, self.stored))[::-1], self.opened
        rows = range(len(opened.gaps))
        self._clear()
        for layer in range(len(old)):
            columns, (keys_Cd, values_Cd) = old.pop()  # freed once its successor stands
            kept = []
            for row in rows:
                index_HT = columns.present(row, opened)
                key_HTd, value_HTd = keys_Cd[index_HT], values_Cd[index_HT]
                kept.append(Held(key_HTd, value_HTd, *choose(row, layer, key_HTd, value_HTd)))
            self._add_layer(kept)

    def lengths(self) -> Tensor:
        """Cached tokens of each lane in each layer, [layers, N]."""
        counted = {columns: columns.lengths(self.opened) for columns in self._shared.values()}
        return torch.stack([counted[columns] for columns in self.columns])

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers of K and V, their padding and free room included."""
        return self.rings.nbytes + sum(keys_Cd.nbytes + values_Cd.nbytes for keys_Cd, values_Cd in self.stored)

    @property
    def free_columns(self) -> int:
        """New tokens that still fit."""
        return self.room - self.opened.filled

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these (finished answers free their memory)."""
        numbers = rows.tolist()
        self._remembers_R = [self._remembers_R[row] for row in numbers]
        cut = {old: old.layout.select(numbers) for old in self._shared.values()}
        chosen = {old: old.select(numbers, layout) for old, (layout, _) in cut.items()}
        for layer, columns in enumerate(self.columns):
            _, origins = cut[columns]
            keys_Cd, values_Cd = self.stored[layer]
            self.stored[layer] = columns.cut(keys_Cd, origins), columns.cut(values_Cd, origins)
        self.columns = [chosen[columns] for columns in self.columns]
        self._shared = {key: chosen[columns] for key, columns in self._shared.items()}
        self.newest_valid_Rn = self.newest_valid_Rn[rows]
        self.opened.select(rows)
        self._open(self.opened)
        self.rings.select(rows)
        self.memories.select(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns[layer_idx].layout.buckets[0].width + self.opened.filled


def pack(columns: Columns, held_R: Sequence[Held]) -> tuple[Tensor, Tensor]:
    """K and V of a layer in flat storage [C, d]: in each bucket kept tokens right-aligned in the first W columns.

    Columns before a lane's tokens repeat its first one (finite, and masked), the room behind them is zero.
    """
    first = held_R[0].keys_HLd
    keys_Cd, values_Cd = (first.new_zeros(columns.size, first.shape[-1]) for _ in range(2))
    index_I, begin_N = _all_indices(columns.layout, held_R)
    length_N = columns.layout.into_buckets(columns.kept_N)
    for bucket, keys_NTd, values_NTd in zip(
        columns.layout.buckets, columns.views(keys_Cd), columns.views(values_Cd), strict=True
    ):
        before_N1 = bucket.width - length_N[bucket.span, None]
        column_NW = (torch.arange(bucket.width, device=index_I.device) - before_N1).clamp(min=0)
        index_NW = index_I[begin_N[bucket.span, None] + column_NW]
        _gather(columns.layout, bucket, held_R, index_NW, keys_NTd, values_NTd)
    return keys_Cd, values_Cd


def _all_indices(layout: LaneLayout, held_R: Sequence[Held]) -> tuple[Tensor, Tensor]:
    """What all rows hold, one after another, and where each lane's part begins in it, in bucket order.

    One copy for all rows: a small one for each would take the host longer than the device needs for everything.
    """
    begins, total = [], 0
    for held in held_R:
        heads, kept = held.index_HK.shape
        begins += [total + head * kept for head in range(heads)]
        total += heads * kept
    index_I = torch.cat([held.index_HK.flatten() for held in held_R])
    return index_I, torch.tensor([begins[lane] for lane in layout.lane_N], device=index_I.device)


def _gather(
    layout: LaneLayout, bucket: Bucket, held_R: Sequence[Held], index_NW: Tensor, keys_NTd: Tensor, values_NTd: Tensor
) -> None:
    """A bucket's kept tokens; rows of one context share a gather."""
    head_N1 = torch.tensor([[lane % layout.heads] for lane in layout.lane_N[bucket.span]], device=index_NW.device)
    runs: list[tuple[int, int, Held]] = []  # lanes begin..end of the bucket, whose rows share K and V
    for row, heads, first in layout.rows_in(bucket):
        held, end = held_R[row], first + len(heads)
        if runs and runs[-1][2].keys_HLd is held.keys_HLd:
            runs[-1] = (runs[-1][0], end, held)
        else:
            runs.append((first, end, held))
    for begin, end, held in runs:
        where = head_N1[begin:end], index_NW[begin:end]
        keys_NTd[begin:end, : bucket.width] = held.keys_HLd[where]
        values_NTd[begin:end, : bucket.width] = held.values_HLd[where]
