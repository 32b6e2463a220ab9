"""The columns of a layout's buffers: where each lies in flat storage, and which of them hold tokens.

All buckets of a layer lie one after another in flat storage: in each lane first padding, then its kept tokens up to the
bucket's width W, then room for new ones. So a lane's tokens are neighbours, and every place is addressed through
tensors, so that a decode step can be captured as a CUDA graph. Layers whose lanes have the same lengths share one of
these.
Shapes: R rows, H KV heads, N lanes (by lane; lanes.py), C columns of all lanes in storage; of a bucket: N lanes by
place, T columns each; of a row: T tokens of its longest head.
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
        self._present: dict[int, Tensor] = {}  # row -> where its tokens lie while so many columns are open
        self._filled = 0

    def views(self, stored_C: Tensor) -> list[Tensor]:
        """[C, ...] -> each bucket's part, [N, T, ...]."""
        parts = stored_C.split([lanes * columns for lanes, columns in self._shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self._shapes)]

    def present(self, row: int, opened: Opened) -> Tensor:
        """Where a row's tokens lie in storage, oldest first [H, T]; a head that holds fewer repeats its first one
        before it. Found once for all layers that share these columns."""
        if self._filled != opened.filled:
            self._present, self._filled = {}, opened.filled
        if row not in self._present:
            heads, gap = self.layout.heads, opened.gaps[row]
            lanes = slice(row * heads, (row + 1) * heads)
            kept = max(self.length_N[lanes])
            token_T = torch.arange(kept + opened.filled - gap, device=self.kept_N.device)
            kept_H1 = self.kept_N[lanes, None]
            token_HT = (token_T - (kept - kept_H1)).clamp(min=0)  # among its head's own
            self._present[row] = self.begin_N[lanes, None] + token_HT + gap * (token_HT >= kept_H1)
        return self._present[row]

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
