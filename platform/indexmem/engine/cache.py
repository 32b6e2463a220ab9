"""A batch of compressed caches, ragged over rows, layers and heads, in static buffers.

Each bucket of lanes (lanes.py) holds kept K and V left-padded to its width, then room for new tokens; columns.py knows
which columns exist. New tokens of all rows share a column. Attention reads whole strides of columns, so that a decode
step within a stride can be captured as a CUDA graph. Padding and validity live here and nowhere on the model.
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
from indexmem.engine.lanes import Bucket, LaneLayout
from indexmem.engine.memories import RowMemories
from indexmem.eviction.context import RowCache

STRIDE = 64  # new columns that attention begins to read at a time

# (row, layer, keys [H, T, d], values [H, T, d]) of a row's tokens, without padding -> which of them stay, [H, K].
Choose = Callable[[int, int, Tensor, Tensor], Tensor]


class RaggedCache(Cache):
    """The cache that the model writes to (`past_key_values`) and attends with (`kv_view`)."""

    def __init__(self, rows: Sequence[RowCache], room: int) -> None:
        super().__init__(layers=[])
        self.device, self.dtype = rows[0].keys_HLd[0].device, rows[0].keys_HLd[0].dtype
        self.heads = rows[0].keys_HLd[0].shape[0]
        self.room = -(-room // STRIDE) * STRIDE
        self.memories = RowMemories(rows, self.device)
        self._remembers_R = [row.memories is not None for row in rows]
        self._rotary: tuple[Tensor, Tensor] | None = None  # cos and sin of the new tokens' positions
        self._clear()
        for layer in range(len(rows[0].kept_HK)):
            self._add_layer([row.lengths(layer) for row in rows], [row.kept_tokens(layer) for row in rows])

    def _clear(self) -> None:
        """No layers, no new tokens."""
        self.filled = 0  # columns of new tokens in use
        self.next_1 = torch.zeros(1, dtype=torch.long, device=self.device)  # the same, where a captured step reads it
        self.newest_valid_Rn = torch.empty(0)  # which of the newest columns hold a real token
        self.keys: list[list[Tensor]] = []  # layer, bucket -> [N, T, d]
        self.values: list[list[Tensor]] = []
        self.columns: list[Columns] = []  # by layer; layers whose lanes have the same lengths share one
        self._shared: dict[tuple[int, ...], Columns] = {}

    def _add_layer(self, lengths_RH: Sequence[Sequence[int]], tokens: Sequence[tuple[Tensor, Tensor]]) -> None:
        """The next layer from each row's K and V [H, K, d] and how many of the K belong to each head."""
        length_N = tuple(length for row in lengths_RH for length in row)
        if length_N not in self._shared:
            layout = LaneLayout.of(lengths_RH, self._remembers_R, self.device)
            self._shared[length_N] = Columns(layout, length_N, self.room, self.dtype, self.device)
        columns = self._shared[length_N]
        self.columns.append(columns)
        for stored, part in ((self.keys, 0), (self.values, 1)):
            contents = [pair[part] for pair in tokens]
            stored.append(
                [self._filled(columns.layout, bucket, contents, lengths_RH) for bucket in columns.layout.buckets]
            )

    def _filled(
        self, layout: LaneLayout, bucket: Bucket, contents: Sequence[Tensor], lengths_RH: Sequence[Sequence[int]]
    ) -> Tensor:
        """A bucket's buffer with the kept tokens of its lanes, right-aligned before the room for new ones."""
        size = bucket.end - bucket.begin
        buffer_NTd = contents[0].new_zeros(size, bucket.width + self.room, contents[0].shape[-1])
        for row, heads, place in layout.rows_in(bucket):
            runs = [heads] if len(heads) == self.heads and len(set(lengths_RH[row])) == 1 else [[h] for h in heads]
            for run in runs:
                length = lengths_RH[row][run[0]]
                target = buffer_NTd[place : place + len(run), bucket.width - length : bucket.width]
                target.copy_(contents[row][run[0] : run[-1] + 1, :length])
                place += len(run)
        return buffer_NTd

    def extend(self, valid_Rn: Tensor) -> None:
        """Open columns for the next n tokens of each row; False marks a row's padding. Call before the model."""
        for columns in self._shared.values():
            columns.extend(valid_Rn, self.next_1)
        self.next_1 += valid_Rn.shape[1]
        self.filled += valid_Rn.shape[1]
        self.newest_valid_Rn = valid_Rn

    def reach_after(self, new: int) -> int:
        """Columns of the room that attention reads once `new` more are open: whole strides."""
        return -(-(self.filled + new) // STRIDE) * STRIDE

    def update(self, key_states, value_states, layer_idx, cache_kwargs=None):  # type: ignore[no-untyped-def]
        """transformers' hook: store the new K and V [R, H, n, d] of a layer; `attend` finds them here."""
        self._rotary = None if cache_kwargs is None else (cache_kwargs["cos"], cache_kwargs["sin"])
        columns = self.columns[layer_idx]
        for new, stored in ((key_states, self.keys), (value_states, self.values)):
            new_Nnd = columns.layout.into_places(new.flatten(0, 1))
            for bucket, buffer_NTd, column_n in zip(columns.layout.buckets, stored[layer_idx], columns.newest_n):
                buffer_NTd.index_copy_(1, column_n, new_Nnd[bucket.places])
        return key_states, value_states

    def attend(self, layer: int, query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, scaling: float) -> Tensor:
        """softmax(q k^T scaling + mask) v over valid columns, causal among the new tokens: [R, n, Q, d].

        K and V come from the buffers, the arguments are the new tokens' only. The g query heads of a KV head are
        folded into the query axis, so that K and V are never repeated. Rows with a latent memory then get its part.
        """
        rows, heads, new, dim = query_BQLd.shape
        group = heads // self.heads
        columns = self.columns[layer]
        query_NGd = columns.layout.into_places(query_BQLd.reshape(rows * self.heads, group * new, dim))
        outputs, sums, reach = [], [], self.reach_after(0)
        for number, bucket in enumerate(columns.layout.buckets):
            end = bucket.width + reach
            query, mask = query_NGd[bucket.places, None], columns.mask(number, end, new, group)
            key, value = (stored[layer][number][:, None, :end] for stored in (self.keys, self.values))
            outputs.append(F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)[:, 0])
            if bucket.remembers:
                logits = (query @ key.transpose(-1, -2)).float().mul_(scaling).add_(mask)
                sums.append(logits.logsumexp(-1)[:, 0])
            else:
                sums.append(query.new_zeros(query.shape[0], group * new, dtype=torch.float32))
        output_RQnd = columns.layout.into_lanes(torch.cat(outputs)).reshape(rows, heads, new, dim)
        if self.memories.any_in(layer):
            lse_RQn = columns.layout.into_lanes(torch.cat(sums)).reshape(rows, heads, new)
            output_RQnd = self.memories.read(layer, query_BQLd, output_RQnd, lse_RQn, self._rotary)
        return output_RQnd.transpose(1, 2)

    def repack(self, choose: Choose) -> None:
        """Keep of each row and layer what `choose` says; new tokens then have the room behind that again.

        Called layer by layer, rows in order. All heads of a row must hold as many tokens.
        """
        old = list(zip(self.columns, self.keys, self.values))[::-1]
        self._clear()
        for layer in range(len(old)):
            columns, keys, values = old.pop()  # freed once its successor stands
            kept = []
            for row in range(len(self._remembers_R)):
                number, places = columns.layout.home(row)
                column_T = (columns.masks_NT[number][places.start] == 0).nonzero().squeeze(1)
                key_HTd, value_HTd = (stored[number][places][:, column_T] for stored in (keys, values))
                index = choose(row, layer, key_HTd, value_HTd)[..., None].expand(-1, -1, key_HTd.shape[-1])
                kept.append((key_HTd.gather(1, index), value_HTd.gather(1, index)))
            self._add_layer([[key.shape[1]] * self.heads for key, _ in kept], kept)

    def lengths(self) -> Tensor:
        """Cached tokens of each lane in each layer, [layers, N]."""
        counted = {
            id(columns): columns.layout.into_lanes(torch.cat([(mask == 0).sum(1) for mask in columns.masks_NT]))
            for columns in self._shared.values()
        }
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
            for stored in (self.keys, self.values):
                stored[layer] = [stored[layer][number][places] for number, places in origins]
        chosen = {id(old): old.select(*cut[id(old)]) for old in self._shared.values()}
        self.columns = [chosen[id(columns)] for columns in self.columns]
        self._shared = {key: chosen[id(columns)] for key, columns in self._shared.items()}
        self.newest_valid_Rn = self.newest_valid_Rn[rows]
        self.memories.select(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns[layer_idx].layout.buckets[0].width + self.filled
