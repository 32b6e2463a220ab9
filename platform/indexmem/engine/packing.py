"""Kept tokens of a batch's rows, gathered into the buffers of their lanes.

Shapes: R rows, H KV heads, L tokens that K and V hold, K kept tokens, I of all rows and heads, N lanes of a bucket, W
its width, T its columns, C columns of all lanes in storage, d head_dim.
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


def pack(columns: Columns, held_R: Sequence[Held]) -> tuple[Tensor, Tensor]:
    """K and V of a layer in flat storage [C, d]: in each bucket kept tokens right-aligned in the first W columns.

    Columns before a lane's tokens repeat its first one (finite, and masked), the room behind them is zero.
    """
    first = held_R[0].keys_HLd
    keys_Cd, values_Cd = (first.new_zeros(columns.size, first.shape[-1]) for _ in range(2))
    index_I, begin_N = _all_indices(columns.layout, held_R)
    length_N = columns.layout.into_places(columns.kept_N)
    for bucket, keys_NTd, values_NTd in zip(
        columns.layout.buckets, columns.views(keys_Cd), columns.views(values_Cd), strict=True
    ):
        before_N1 = bucket.width - length_N[bucket.places, None]
        column_NW = (torch.arange(bucket.width, device=index_I.device) - before_N1).clamp(min=0)
        index_NW = index_I[begin_N[bucket.places, None] + column_NW]
        _gather(columns.layout, bucket, held_R, index_NW, keys_NTd, values_NTd)
    return keys_Cd, values_Cd


def _all_indices(layout: LaneLayout, held_R: Sequence[Held]) -> tuple[Tensor, Tensor]:
    """What all rows hold, one after another, and where each lane's part begins in it, by place.

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
    head_N1 = torch.tensor([[lane % layout.heads] for lane in layout.lane_N[bucket.places]], device=index_NW.device)
    runs: list[tuple[int, int, Held]] = []  # places begin..end whose rows share K and V
    for row, heads, place in layout.rows_in(bucket):
        held, end = held_R[row], place + len(heads)
        if runs and runs[-1][2].keys_HLd is held.keys_HLd:
            runs[-1] = (runs[-1][0], end, held)
        else:
            runs.append((place, end, held))
    for begin, end, held in runs:
        where = head_N1[begin:end], index_NW[begin:end]
        keys_NTd[begin:end, : bucket.width] = held.keys_HLd[where]
        values_NTd[begin:end, : bucket.width] = held.values_HLd[where]
