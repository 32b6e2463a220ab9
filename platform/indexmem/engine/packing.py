"""Kept tokens of a batch's rows, gathered into the buffers of their lanes.

Shapes: R rows, H KV heads, L tokens that K and V hold, K kept tokens, N lanes of a bucket, W its width, T its columns,
C columns of all lanes in storage, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from indexmem.engine.columns import Columns
from indexmem.engine.lanes import Bucket, LaneLayout
from indexmem.eviction.context import RowCache


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

    @property
    def is_even(self) -> bool:
        """Whether all heads hold as many tokens."""
        return len(set(self.lengths_H)) == 1


def pack(columns: Columns, held_R: Sequence[Held]) -> tuple[Tensor, Tensor]:
    """K and V of a layer in flat storage [C, d]: in each bucket kept tokens right-aligned in the first W columns.

    Columns before a lane's tokens repeat some token (finite, and masked), the room behind them is zero.
    """
    first = held_R[0].keys_HLd
    keys_Cd, values_Cd = (first.new_zeros(columns.size, first.shape[-1]) for _ in range(2))
    for bucket, keys_NTd, values_NTd in zip(
        columns.layout.buckets, columns.views(keys_Cd), columns.views(values_Cd), strict=True
    ):
        _fill(columns.layout, bucket, held_R, keys_NTd[:, : bucket.width], values_NTd[:, : bucket.width])
    return keys_Cd, values_Cd


def _fill(layout: LaneLayout, bucket: Bucket, held_R: Sequence[Held], keys_NWd: Tensor, values_NWd: Tensor) -> None:
    """A bucket's kept tokens; rows of one context share a gather."""
    lanes, width = keys_NWd.shape[:2]
    index_NW = torch.zeros(lanes, width, dtype=torch.long, device=keys_NWd.device)
    runs: list[tuple[int, int, Held]] = []  # places begin..end whose rows share K and V
    for row, heads, place in layout.rows_in(bucket):
        held, end = held_R[row], place + len(heads)
        if held.is_even and len(heads) == layout.heads:
            index_NW[place:end, width - held.lengths_H[0] :] = held.index_HK
        else:
            for lane, head in enumerate(heads, start=place):
                length = held.lengths_H[head]
                index_NW[lane, width - length :] = held.index_HK[head, :length]
        if runs and runs[-1][2].keys_HLd is held.keys_HLd:
            runs[-1] = (runs[-1][0], end, held)
        else:
            runs.append((place, end, held))
    head_N1 = torch.tensor([[lane % layout.heads] for lane in layout.lane_N[bucket.places]], device=keys_NWd.device)
    for begin, end, held in runs:
        where = head_N1[begin:end], index_NW[begin:end]
        keys_NWd[begin:end] = held.keys_HLd[where]
        values_NWd[begin:end] = held.values_HLd[where]
