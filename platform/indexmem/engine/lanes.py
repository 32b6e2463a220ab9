"""How the lanes of a decode batch share buffers.

A lane is one KV head of one row: the smallest thing with a length of its own. Lanes of similar length share a bucket,
that is one left-padded buffer and one attention call, so that rows or heads that keep very different numbers of tokens
neither store nor read much padding. Lanes lie in their buckets in an order of places.
Shapes: R rows, H KV heads, N = R H lanes; "by lane" they count row by row, "by place" bucket by bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 8  # columns: fused attention wants masks whose rows start at multiples of 16 bytes
# Bytes of padding that are read as fast as another attention call starts (about 50 us on a CPU, 8 us on a GPU).
CALL_BYTES = {"cpu": 2**19, "cuda": 24 * 2**20}

Kind = tuple[bool, int]  # of a lane: whether its row has a latent memory, and its length


@dataclass(frozen=True)
class Bucket:
    """Lanes that share a buffer, at places begin..end, with `width` columns for kept tokens."""

    begin: int
    end: int
    width: int
    remembers: bool  # its rows have a latent memory

    @property
    def places(self) -> slice:
        return slice(self.begin, self.end)


class LaneLayout:
    """Where each lane lies. Lanes of rows with and without memory are never mixed."""

    def __init__(self, heads: int, buckets: Sequence[Bucket], lane_N: Sequence[int], device: torch.device) -> None:
        self.heads, self.buckets, self._device = heads, tuple(buckets), device
        self.lane_N = tuple(lane_N)  # the lane at each place
        self._order_N = self._inverse_N = None
        if any(lane != place for place, lane in enumerate(lane_N)):
            self._order_N = torch.tensor(lane_N, device=device)
            self._inverse_N = self._order_N.argsort()

    @classmethod
    def of(
        cls,
        lengths_RH: Sequence[Sequence[int]],
        remembers_R: Sequence[bool],
        column_bytes: int,
        device: torch.device,
    ) -> LaneLayout:
        """As few buckets as pay: padding costs time and memory, a bucket the start of an attention call.

        `column_bytes`: K and V of one token in one lane.
        """
        kind_N: list[Kind] = [(has, length) for row, has in zip(lengths_RH, remembers_R) for length in row]
        groups = _group(Counter(kind_N), CALL_BYTES[device.type] // column_bytes)
        number = {kind: i for i, group in enumerate(groups) for kind in group}
        # Stable: a batch whose rows come sorted needs no reordering at all.
        lane_N = sorted(range(len(kind_N)), key=lambda lane: number[kind_N[lane]])
        buckets, begin = [], 0
        for group in groups:
            end = begin + sum(kind in group for kind in kind_N)
            remembers, longest = group[0]
            buckets.append(Bucket(begin, end, -(-longest // ALIGN) * ALIGN, remembers))
            begin = end
        return cls(len(lengths_RH[0]), buckets, lane_N, device)

    def into_places(self, by_lane: Tensor) -> Tensor:
        """[N, ...] by lane -> by place."""
        return by_lane if self._order_N is None else by_lane[self._order_N]

    def into_lanes(self, by_place: Tensor) -> Tensor:
        """[N, ...] by place -> by lane."""
        return by_place if self._inverse_N is None else by_place[self._inverse_N]

    def rows_in(self, bucket: Bucket) -> list[tuple[int, list[int], int]]:
        """(row, its heads in this bucket, the first's place in the buffer): places of a row follow one another."""
        found: list[tuple[int, list[int], int]] = []
        for place in range(bucket.begin, bucket.end):
            row, head = divmod(self.lane_N[place], self.heads)
            if not found or found[-1][0] != row:
                found.append((row, [], place - bucket.begin))
            found[-1][1].append(head)
        return found

    def select(self, rows: Sequence[int]) -> tuple[LaneLayout, list[tuple[int, Tensor]]]:
        """The layout of these rows alone, and where each of its buckets comes from: (old number, places that stay).

        Buckets keep their width, so that buffers are cut and never rearranged; empty ones go.
        """
        renumbered = {row: i for i, row in enumerate(rows)}
        buckets: list[Bucket] = []
        lane_N: list[int] = []
        origins: list[tuple[int, Tensor]] = []
        for number, old in enumerate(self.buckets):
            moves = []
            for place, lane in enumerate(self.lane_N[old.places]):
                row, head = divmod(lane, self.heads)
                if row in renumbered:
                    moves.append((renumbered[row] * self.heads + head, place))
            if moves:
                moves.sort()
                begin = len(lane_N)
                lane_N += [lane for lane, _ in moves]
                buckets.append(Bucket(begin, len(lane_N), old.width, old.remembers))
                origins.append((number, torch.tensor([place for _, place in moves], device=self._device)))
        return LaneLayout(self.heads, buckets, lane_N, self._device), origins


def _group(lanes: Counter[Kind], spare: int) -> list[list[Kind]]:
    """Lane kinds by bucket, the longest first in each; a bucket is full when its padding exceeds `spare` columns."""
    groups: list[list[Kind]] = []
    padding = 0
    for kind in sorted(lanes, key=lambda kind: (kind[0], -kind[1])):
        remembers, length = kind
        if groups and groups[-1][0][0] == remembers:
            padding += (groups[-1][0][1] - length) * lanes[kind]
            if padding <= spare:
                groups[-1].append(kind)
                continue
        groups.append([kind])
        padding = 0
    return groups
