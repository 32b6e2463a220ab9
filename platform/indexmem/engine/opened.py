"""The columns that a batch has opened behind its kept tokens: the same ones in all layers.

New tokens of all rows share a column. Only a question, which comes first, is padded (on the left), so a row's padding
is a gap right behind its kept tokens. What a captured step reads lies on the device.
Shapes: R rows, n new tokens now.
"""

from __future__ import annotations

import torch
from torch import Tensor

STRIDES = {"cpu": 64, "cuda": 1024}  # new columns that attention begins to read at a time: each costs a new graph


class Opened:
    """How many columns are open, on the host and on the device, and how many of them are a row's padding."""

    def __init__(self, rows: int, room: int, device: torch.device) -> None:
        self.room, self.filled = room, 0
        self.count_1 = torch.zeros(1, dtype=torch.long, device=device)  # `filled` on the device
        self.gap_R = torch.zeros(rows, dtype=torch.long, device=device)
        self._gaps: list[int] | None = None  # the same on the host, once somebody has asked
        self._stride = STRIDES[device.type]

    def extend(self, valid_Rn: Tensor) -> None:
        """Open columns for the next n tokens of each row; False is padding."""
        new = valid_Rn.shape[1]
        assert new == 1 or not self.filled, "only what comes first is padded"
        if not self.filled:
            self.gap_R, self._gaps = (~valid_Rn).sum(1), None
        self.count_1 += new
        self.filled += new

    def replayed(self) -> None:
        """A captured step has opened a column on the device."""
        self.filled += 1

    def reach_after(self, new: int) -> int:
        """Columns that attention reads once `new` more are open: whole strides."""
        return min(self.room, -(-(self.filled + new) // self._stride) * self._stride)

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.gap_R, self._gaps = self.gap_R[rows], None

    @property
    def gaps(self) -> list[int]:
        """Each row's padding."""
        if self._gaps is None:
            self._gaps = self.gap_R.tolist()  # waits for the device
        return self._gaps
