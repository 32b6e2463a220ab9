"""Which columns of a layout's buffers hold tokens, as additive masks: 0 for a token, -inf for none.

Layers whose lanes have the same lengths share one of these. All places are addressed through tensors, so that opening
a column can be part of a captured CUDA graph.
Shapes: R rows, N lanes of a bucket, T columns, n new tokens now, g query heads per KV head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from indexmem.engine.lanes import LaneLayout


class Columns:
    """Validity of the columns of every bucket of a layout."""

    def __init__(
        self, layout: LaneLayout, length_N: Sequence[int], room: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`length_N`: kept tokens of each lane, right-aligned in its bucket; nothing is in the room behind them yet."""
        self.layout = layout
        self.masks_NT: list[Tensor] = []
        for bucket in layout.buckets:
            lengths_N1 = torch.tensor([[length_N[lane]] for lane in layout.lane_N[bucket.places]], device=device)
            column_T = torch.arange(bucket.width + room, device=device)
            kept_NT = (column_T >= bucket.width - lengths_N1) & (column_T < bucket.width)
            self.masks_NT.append(
                torch.zeros(kept_NT.shape, dtype=dtype, device=device).masked_fill_(~kept_NT, -torch.inf)
            )
        self.newest_n: list[Tensor] = []  # per bucket: the columns opened last
        self._now: dict[int, Tensor] = {}  # bucket -> masks of the newest tokens' queries

    def extend(self, valid_Rn: Tensor, next_1: Tensor) -> None:
        """Open columns for the next n tokens of each row, `next_1` columns behind the kept ones; False is padding."""
        bias_Rn = torch.zeros(valid_Rn.shape, dtype=self.masks_NT[0].dtype, device=valid_Rn.device)
        bias_Nn = bias_Rn.masked_fill_(~valid_Rn, -torch.inf).repeat_interleave(self.layout.heads, dim=0)
        bias_Nn = self.layout.into_places(bias_Nn)
        offset_n = next_1 + torch.arange(valid_Rn.shape[1], device=valid_Rn.device)
        self.newest_n = [offset_n + bucket.width for bucket in self.layout.buckets]
        for bucket, mask_NT, column_n in zip(self.layout.buckets, self.masks_NT, self.newest_n):
            mask_NT.index_copy_(1, column_n, bias_Nn[bucket.places])
        self._now.clear()

    def mask(self, number: int, end: int, new: int, group: int) -> Tensor:
        """Mask [N, 1, g n or 1, end] of a bucket for the newest n tokens' queries, causal among themselves."""
        mask_NT = self.masks_NT[number][:, :end]
        if new == 1:
            return mask_NT[:, None, None]
        if number not in self._now:
            mask_NnT = mask_NT[:, None].repeat(1, new, 1)
            column_n = self.newest_n[number]
            future_nn = torch.ones(new, new, dtype=torch.bool, device=mask_NT.device).triu(1)
            mask_NnT[:, :, column_n] = mask_NnT[:, :, column_n].masked_fill(future_nn, -torch.inf)
            # A padding query would have no column at all and produce NaN; let it see its own (unused) column.
            mask_NnT[:, torch.arange(new, device=mask_NT.device), column_n] = 0.0
            self._now[number] = mask_NnT.repeat(1, group, 1)[:, None]
        return self._now[number]

    def select(self, layout: LaneLayout, origins: Sequence[tuple[int, Tensor]]) -> Columns:
        """Of the rows that `layout` was cut down to."""
        chosen = Columns.__new__(Columns)
        chosen.layout, chosen.newest_n, chosen._now = layout, [], {}
        chosen.masks_NT = [self.masks_NT[number][places] for number, places in origins]
        return chosen
