"""The columns of a layout's buffers: where each lies in flat storage, and which of them hold tokens.

All buckets of a layer lie one after another in flat storage, so that the newest tokens of all lanes are written by one
kernel, and every place is addressed through tensors, so that a decode step can be captured as a CUDA graph. Layers
whose lanes have the same lengths share one of these. Masks are additive: 0 for a token, -inf for none.
Shapes: R rows, N lanes by place, C columns of all lanes in storage; of a bucket: N lanes, T columns each, W of them for
kept tokens; n new tokens now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from indexmem.engine.lanes import LaneLayout


class Columns:
    """Storage and validity of the columns of every bucket of a layout."""

    def __init__(self, layout: LaneLayout, room: int, mask_C: Tensor) -> None:
        self.layout, self.room = layout, room
        self._mask_C = mask_C
        self._shapes = [(bucket.end - bucket.begin, bucket.width + room) for bucket in layout.buckets]
        starts, begin = [], 0
        for bucket, (lanes, columns) in zip(layout.buckets, self._shapes):
            starts += [begin + lane * columns + bucket.width for lane in range(lanes)]
            begin += lanes * columns
        self.size = begin
        self._room_N = torch.tensor(starts, device=mask_C.device)  # where the room of each lane begins
        self.newest_Nn = torch.empty(0)  # where the newest tokens go

    @classmethod
    def of(
        cls, layout: LaneLayout, length_N: Sequence[int], room: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """`length_N`: kept tokens of each lane, by lane; right-aligned in its bucket, with nothing behind them yet."""
        masks = []
        for bucket in layout.buckets:
            lengths_N1 = torch.tensor([[length_N[lane]] for lane in layout.lane_N[bucket.places]], device=device)
            column_T = torch.arange(bucket.width + room, device=device)
            kept_NT = (column_T >= bucket.width - lengths_N1) & (column_T < bucket.width)
            masks.append(torch.zeros(kept_NT.shape, dtype=dtype, device=device).masked_fill_(~kept_NT, -torch.inf))
        return cls(layout, room, torch.cat([mask.flatten() for mask in masks]))

    def views(self, stored_C: Tensor) -> list[Tensor]:
        """[C, ...] -> each bucket's part, [N, T, ...]."""
        parts = stored_C.split([lanes * columns for lanes, columns in self._shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self._shapes)]

    def extend(self, valid_Rn: Tensor, next_1: Tensor) -> None:
        """Open columns for the next n tokens of each row, `next_1` columns behind the kept ones; False is padding."""
        bias_Rn = torch.zeros(valid_Rn.shape, dtype=self._mask_C.dtype, device=valid_Rn.device)
        bias_Nn = bias_Rn.masked_fill_(~valid_Rn, -torch.inf).repeat_interleave(self.layout.heads, dim=0)
        offset_n = next_1 + torch.arange(valid_Rn.shape[1], device=valid_Rn.device)
        self.newest_Nn = self._room_N[:, None] + offset_n
        self._mask_C[self.newest_Nn] = self.layout.into_places(bias_Nn)

    def masks(self, filled: int, reach: int, new: int) -> list[Tensor]:
        """Each bucket's mask [N, 1, n, W + reach] for the newest n tokens' queries, causal among themselves.

        Of the room, `filled` columns are open, the newest n last; masks show `reach` of them.
        """
        ends = [bucket.width + reach for bucket in self.layout.buckets]
        masks_NT = [mask_NT[:, :end] for mask_NT, end in zip(self.views(self._mask_C), ends)]
        if new == 1:
            return [mask_NT[:, None, None] for mask_NT in masks_NT]
        firsts = [bucket.width + filled - new for bucket in self.layout.buckets]
        return [_causal(mask_NT, first, new) for mask_NT, first in zip(masks_NT, firsts)]

    def present(self, number: int, place: int) -> Tensor:
        """Columns of a bucket that hold a token of the lane at this place, ascending."""
        return (self.views(self._mask_C)[number][place] == 0).nonzero().squeeze(1)

    def lengths(self) -> Tensor:
        """Tokens of each lane [N], by lane."""
        return self.layout.into_lanes(torch.cat([(mask_NT == 0).sum(1) for mask_NT in self.views(self._mask_C)]))

    def cut(self, stored_C: Tensor, origins: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Storage of the lanes that stay: (bucket number, its places) each."""
        views = self.views(stored_C)
        return torch.cat([views[number][places].flatten(0, 1) for number, places in origins])

    def select(self, layout: LaneLayout, origins: Sequence[tuple[int, Tensor]]) -> Columns:
        """Of the rows that `layout` was cut down to."""
        return Columns(layout, self.room, self.cut(self._mask_C, origins))


def _causal(mask_NT: Tensor, first: int, new: int) -> Tensor:
    """[N, T] -> [N, 1, n, T] for queries whose own columns begin at `first`."""
    mask_NnT = mask_NT[:, None].repeat(1, new, 1)
    newest_Nnn = mask_NnT[:, :, first : first + new]
    newest_Nnn.masked_fill_(torch.ones(new, new, dtype=torch.bool, device=mask_NT.device).triu(1), -torch.inf)
    # A padding query would have no column at all and produce NaN; let it see its own (unused) column.
    newest_Nnn.diagonal(dim1=1, dim2=2).zero_()
    return mask_NnT[:, None]
