"""The columns of a layout's buffers: where each lies in flat storage, and which of them hold tokens.

All buckets of a layer lie one after another in flat storage: in each lane first padding, then its kept tokens up to the
bucket's width W, then room for new ones. So a lane's tokens are neighbours, and every place is addressed through
tensors, so that a decode step can be captured as a CUDA graph. Layers whose lanes have the same lengths share one of
these.
Shapes: R rows, N lanes (by lane; lanes.py), C columns of all lanes in storage; of a bucket: N lanes by place, T columns
each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from indexmem.engine.lanes import LaneLayout
from indexmem.engine.opened import Opened


class Columns:
    """Storage of every bucket of a layout."""

    def __init__(self, layout: LaneLayout, length_N: Sequence[int], room: int, device: torch.device) -> None:
        """`length_N`: kept tokens of each lane; `room`: columns behind them."""
        self.layout, self.room, self.length_N = layout, room, tuple(length_N)
        self._shapes = [(bucket.end - bucket.begin, bucket.width + room) for bucket in layout.buckets]
        starts, begin = [], 0
        for bucket, (lanes, columns) in zip(layout.buckets, self._shapes):
            starts += [begin + lane * columns + bucket.width for lane in range(lanes)]
            begin += lanes * columns
        self.size = begin
        self.longest = max(self.length_N)
        self.kept_N = torch.tensor(self.length_N, device=device)
        self.room_N = layout.into_lanes(torch.tensor(starts, device=device))  # where the room of each lane begins
        self.begin_N = self.room_N - self.kept_N  # where its tokens begin

    def views(self, stored_C: Tensor) -> list[Tensor]:
        """[C, ...] -> each bucket's part, [N, T, ...]."""
        parts = stored_C.split([lanes * columns for lanes, columns in self._shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self._shapes)]

    def present(self, row: int, filled: int, gap: int) -> tuple[int, slice, Tensor]:
        """Where a row's tokens lie if all its heads hold as many: bucket number, places, columns (ascending)."""
        number, places = self.layout.home(row)
        width, length = self.layout.buckets[number].width, self.length_N[row * self.layout.heads]
        kept_K = torch.arange(width - length, width, device=self.kept_N.device)
        new_n = torch.arange(width + gap, width + filled, device=self.kept_N.device)
        return number, places, torch.cat((kept_K, new_n))

    def lengths(self, opened: Opened) -> Tensor:
        """Tokens of each lane [N]."""
        new_R = opened.filled - opened.gap_R
        return self.kept_N + new_R.repeat_interleave(self.layout.heads)

    def cut(self, stored_C: Tensor, origins: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Storage of the lanes that stay: (bucket number, its places) each."""
        views = self.views(stored_C)
        return torch.cat([views[number][places].flatten(0, 1) for number, places in origins])

    def select(self, rows: Sequence[int], layout: LaneLayout) -> Columns:
        """Of the rows that `layout` was cut down to."""
        heads = layout.heads
        length_N = [self.length_N[row * heads + head] for row in rows for head in range(heads)]
        return Columns(layout, length_N, self.room, self.kept_N.device)
