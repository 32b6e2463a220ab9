"""A batch of compressed caches, ragged over rows, layers and heads, in static buffers.

Each bucket of lanes (lanes.py) holds kept K and V left-padded to its width, then room for new tokens; columns.py knows
which columns exist. New tokens of all rows share a column. Attention reads whole strides of columns, so that a decode
step within a stride can be captured as a CUDA graph. Padding and validity live here and nowhere on the model.
Layers with a sliding window are kept apart (rings.py) and never compressed; where transformers does not ask, `layer`
counts the others.
Shapes: R rows, H KV heads, N lanes, g query heads per KV head, Q = H g, K kept tokens, n new tokens now, d head_dim,
T columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from indexmem.engine.columns import Columns
from indexmem.engine.lanes import ALIGN, LaneLayout
from indexmem.engine.memories import RowMemories
from indexmem.engine.packing import Held, pack
from indexmem.engine.rings import WindowRings
from indexmem.eviction.context import RowCache

STRIDES = {"cpu": 64, "cuda": 256}  # new columns that attention begins to read at a time: each costs a new graph

# (row, layer, keys [H, T, d], values [H, T, d]) of a row's tokens, without padding -> which of them stay, [H, K].
Choose = Callable[[int, int, Tensor, Tensor], Tensor]


class RaggedCache(Cache):
    """The cache that the model writes to (`past_key_values`) and attends with (`kv_view`)."""

    def __init__(self, rows: Sequence[RowCache], room: int, at_once: int | None = None) -> None:
        """`room`: tokens that will follow; `at_once`: the most of them in one forward pass (default: all)."""
        super().__init__(layers=[])
        self.device, self.dtype = rows[0].keys_HLd[0].device, rows[0].keys_HLd[0].dtype
        self.heads = rows[0].keys_HLd[0].shape[0]
        self._stride = STRIDES[self.device.type]
        self.room = -(-room // ALIGN) * ALIGN
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
        self.filled = 0  # columns of new tokens in use
        self.next_1 = torch.zeros(1, dtype=torch.long, device=self.device)  # the same, where a captured step reads it
        self.newest_valid_Rn = torch.empty(0)  # which of the newest columns hold a real token
        self.keys_Cd: list[Tensor] = []  # by layer: all buckets, see columns.py
        self.values_Cd: list[Tensor] = []
        self.columns: list[Columns] = []  # by layer; layers whose lanes have the same lengths share one
        self._shared: dict[tuple[int, ...], Columns] = {}
        self._masked: Columns | None = None  # whose masks are at hand
        self._masks: list[Tensor] = []

    def _add_layer(self, held_R: Sequence[Held]) -> None:
        """The next layer, from what each row holds in it."""
        length_N = tuple(length for held in held_R for length in held.lengths_H)
        if length_N not in self._shared:
            lengths_RH = [held.lengths_H for held in held_R]
            column_bytes = 2 * held_R[0].keys_HLd.shape[-1] * held_R[0].keys_HLd.element_size()
            layout = LaneLayout.of(lengths_RH, self._remembers_R, column_bytes, self.device)
            self._shared[length_N] = Columns.of(layout, length_N, self.room, self.dtype, self.device)
        columns = self._shared[length_N]
        self.columns.append(columns)
        keys_Cd, values_Cd = pack(columns, held_R)
        self.keys_Cd.append(keys_Cd)
        self.values_Cd.append(values_Cd)

    def extend(self, valid_Rn: Tensor) -> None:
        """Open columns for the next n tokens of each row; False marks a row's padding. Call before the model."""
        self._masked, self._masks = None, []
        for columns in self._shared.values():
            columns.extend(valid_Rn, self.next_1)
        self.rings.extend(valid_Rn)
        self.next_1 += valid_Rn.shape[1]
        self.filled += valid_Rn.shape[1]
        self.newest_valid_Rn = valid_Rn

    def reach_after(self, new: int) -> int:
        """Columns of the room that attention reads once `new` more are open: whole strides."""
        return min(self.room, -(-(self.filled + new) // self._stride) * self._stride)

    def update(self, key_states, value_states, layer_idx, cache_kwargs=None):  # type: ignore[no-untyped-def]
        """transformers' hook: store the new K and V [R, H, n, d] of a layer; `attend` finds them here."""
        if layer_idx in self.rings.layers:
            self.rings.store(layer_idx, key_states, value_states)
            return key_states, value_states
        layer = self._number[layer_idx]
        self._rotary = None if cache_kwargs is None else (cache_kwargs["cos"], cache_kwargs["sin"])
        columns = self.columns[layer]
        where = columns.newest_Nn.flatten()
        for new_RHnd, stored_Cd in ((key_states, self.keys_Cd[layer]), (value_states, self.values_Cd[layer])):
            stored_Cd.index_copy_(0, where, columns.layout.into_places(new_RHnd.flatten(0, 1)).flatten(0, 1))
        return key_states, value_states

    def attend(self, layer: int, query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, scaling: float) -> Tensor:
        """softmax(q k^T scaling + mask) v over valid columns, causal among the new tokens: [R, n, Q, d].

        K and V come from the buffers, the arguments are the new tokens' only; they are never repeated for the g query
        heads of a KV head. Rows with a latent memory then get its part. `layer` counts all layers of the model.
        """
        if layer in self.rings.layers:
            return self.rings.attend(layer, query_BQLd, scaling)
        layer = self._number[layer]
        rows, heads, new, dim = query_BQLd.shape
        columns = self.columns[layer]
        query_Ngnd = columns.layout.into_places(query_BQLd.reshape(rows * self.heads, -1, new, dim))
        reach, remembered = self.reach_after(0), self.memories.any_in(layer)
        outputs, sums = [], []
        for bucket, mask_N1nT, keys_NTd, values_NTd in zip(
            columns.layout.buckets,
            self._masks_of(columns, new),
            columns.views(self.keys_Cd[layer]),
            columns.views(self.values_Cd[layer]),
        ):
            query = query_Ngnd[bucket.places]
            key, value = (stored[:, None, : bucket.width + reach] for stored in (keys_NTd, values_NTd))
            outputs.append(_attention(query, key, value, mask_N1nT, scaling))
            if bucket.remembers:
                logits = (query.flatten(1, 2) @ key[:, 0].transpose(-1, -2)).float().mul_(scaling)
                sums.append(logits.unflatten(1, query.shape[1:3]).add_(mask_N1nT).logsumexp(-1))
            elif remembered:
                sums.append(query.new_zeros(query.shape[:3], dtype=torch.float32))  # nobody reads these
        output_RQnd = columns.layout.into_lanes(torch.cat(outputs)).reshape(rows, heads, new, dim)
        if remembered:
            lse_RQn = columns.layout.into_lanes(torch.cat(sums)).reshape(rows, heads, new)
            output_RQnd = self.memories.read(layer, query_BQLd, output_RQnd, lse_RQn, self._rotary)
        return output_RQnd.transpose(1, 2)

    def _masks_of(self, columns: Columns, new: int) -> list[Tensor]:
        """Made once for consecutive layers that share their columns, and not kept for longer: several queries' masks
        are large."""
        if self._masked is not columns:
            self._masked, self._masks = columns, columns.masks(self.filled, self.reach_after(0), new)
        return self._masks

    def repack(self, choose: Choose) -> None:
        """Keep of each row and layer what `choose` says; new tokens then have the room behind that again.

        Called layer by layer, rows in order. All heads of a row must hold as many tokens.
        """
        old = list(zip(self.columns, self.keys_Cd, self.values_Cd))[::-1]
        self._clear()
        for layer in range(len(old)):
            columns, *stored = old.pop()  # freed once its successor stands
            keys, values = (columns.views(stored_Cd) for stored_Cd in stored)
            kept = []
            for row in range(len(self._remembers_R)):
                number, places = columns.layout.home(row)
                column_T = columns.present(number, places.start)
                key_HTd, value_HTd = keys[number][places][:, column_T], values[number][places][:, column_T]
                index_HK = choose(row, layer, key_HTd, value_HTd)
                kept.append(Held(key_HTd, value_HTd, index_HK, [index_HK.shape[1]] * self.heads))
            self._add_layer(kept)

    def lengths(self) -> Tensor:
        """Cached tokens of each lane in each layer, [layers, N]."""
        counted = {id(columns): columns.lengths() for columns in self._shared.values()}
        return torch.stack([counted[id(columns)] for columns in self.columns])

    @property
    def free_columns(self) -> int:
        """New tokens that still fit."""
        return self.room - self.filled

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these (finished answers free their memory)."""
        numbers = rows.tolist()
        self._remembers_R = [self._remembers_R[row] for row in numbers]
        cut = {id(old): old.layout.select(numbers) for old in self._shared.values()}
        for layer, columns in enumerate(self.columns):
            _, origins = cut[id(columns)]
            self.keys_Cd[layer] = columns.cut(self.keys_Cd[layer], origins)
            self.values_Cd[layer] = columns.cut(self.values_Cd[layer], origins)
        chosen = {id(old): old.select(*cut[id(old)]) for old in self._shared.values()}
        self.columns = [chosen[id(columns)] for columns in self.columns]
        self._shared = {key: chosen[id(columns)] for key, columns in self._shared.items()}
        self.newest_valid_Rn = self.newest_valid_Rn[rows]
        self.rings.select(rows)
        self.memories.select(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns[layer_idx].layout.buckets[0].width + self.filled


def _attention(query_Ngnd: Tensor, key_N1Td: Tensor, value_N1Td: Tensor, mask_N1nT: Tensor, scaling: float) -> Tensor:
    """[N, g, n, d]; the g query heads of a lane share its K and V."""
    group, new = query_Ngnd.shape[1:3]
    if new == 1:  # heads as queries: one pass over K and V
        query, key, value = query_Ngnd.transpose(1, 2), key_N1Td, value_N1Td
    else:
        query, key, value = query_Ngnd, key_N1Td.expand(-1, group, -1, -1), value_N1Td.expand(-1, group, -1, -1)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_N1nT, scale=scaling)
    return out.transpose(1, 2) if new == 1 else out
