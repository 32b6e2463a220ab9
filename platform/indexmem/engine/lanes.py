"""How the lanes of a decode batch share buffers, and where each lane's tokens lie in them.

A lane is one KV head of one row: the smallest thing with a length of its own. Lanes of similar length share a bucket,
that is one left-padded buffer and one attention call, so that rows or heads that keep very different numbers of tokens
neither store nor read much padding.
Shapes: R rows, H KV heads, N = R H lanes, C columns of all lanes in storage; of a bucket: N lanes, T columns each; of a
row: T tokens of its longest head. In "lane order" lanes count row by row, in "bucket order" bucket by bucket.
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
STRIDES = {"cpu": 64, "cuda": 1024}  # new columns that attention begins to read at a time: each costs a new graph

LaneKind = tuple[bool, int]  # of a lane: whether its row has a latent memory, and its length


def whole_columns(columns: int) -> int:
    """So many columns or a few more, as buffers have them."""
    return -(-columns // ALIGN) * ALIGN


@dataclass(frozen=True)
class Bucket:
    """Lanes that share a buffer, begin..end in bucket order, with `width` columns for kept tokens."""

    begin: int
    end: int
    width: int
    remembers: bool  # its rows have a latent memory

    @property
    def span(self) -> slice:
        """Of tensors in bucket order."""
        return slice(self.begin, self.end)


class LaneLayout:
    """Which bucket each lane is in. Lanes of rows with and without memory are never mixed."""

    def __init__(self, heads: int, buckets: Sequence[Bucket], lane_N: Sequence[int], device: torch.device) -> None:
        self.heads, self.buckets, self._device = heads, tuple(buckets), device
        self.lane_N = tuple(lane_N)  # in bucket order: which lane it is
        self._order_N = self._inverse_N = None
        if any(lane != number for number, lane in enumerate(lane_N)):
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
        kind_N: list[LaneKind] = [(has, length) for row, has in zip(lengths_RH, remembers_R) for length in row]
        groups = _group(Counter(kind_N), CALL_BYTES[device.type] // column_bytes)
        number = {kind: i for i, group in enumerate(groups) for kind in group}
        # Stable: a batch whose rows come sorted needs no reordering at all.
        lane_N = sorted(range(len(kind_N)), key=lambda lane: number[kind_N[lane]])
        buckets, begin = [], 0
        for group in groups:
            end = begin + sum(kind in group for kind in kind_N)
            remembers, longest = group[0]
            buckets.append(Bucket(begin, end, whole_columns(longest), remembers))
            begin = end
        return cls(len(lengths_RH[0]), buckets, lane_N, device)

    def into_buckets(self, by_lane: Tensor) -> Tensor:
        """[N, ...] in lane order -> in bucket order."""
        return by_lane if self._order_N is None else by_lane[self._order_N]

    def into_lanes(self, by_bucket: Tensor) -> Tensor:
        """[N, ...] in bucket order -> in lane order."""
        return by_bucket if self._inverse_N is None else by_bucket[self._inverse_N]

    def rows_in(self, bucket: Bucket) -> list[tuple[int, list[int], int]]:
        """(row, its heads in this bucket, where the first lies in the buffer): lanes of a row follow one another."""
        found: list[tuple[int, list[int], int]] = []
        for number, lane in enumerate(self.lane_N[bucket.span]):
            row, head = divmod(lane, self.heads)
            if not found or found[-1][0] != row:
                found.append((row, [], number))
            found[-1][1].append(head)
        return found

    def select(self, rows: Sequence[int]) -> tuple[LaneLayout, list[tuple[int, Tensor]]]:
        """The layout of these rows alone, and where each of its buckets comes from: (number of the old one, which
        of its lanes stay).

        Buckets keep their width, so that buffers are cut and never rearranged; empty ones go.
        """
        renumbered = {row: i for i, row in enumerate(rows)}
        buckets: list[Bucket] = []
        lane_N: list[int] = []
        origins: list[tuple[int, Tensor]] = []
        for number, old in enumerate(self.buckets):
            moves = []
            for index, lane in enumerate(self.lane_N[old.span]):
                row, head = divmod(lane, self.heads)
                if row in renumbered:
                    moves.append((renumbered[row] * self.heads + head, index))
            if moves:
                moves.sort()
                begin = len(lane_N)
                lane_N += [lane for lane, _ in moves]
                buckets.append(Bucket(begin, len(lane_N), old.width, old.remembers))
                origins.append((number, torch.tensor([index for _, index in moves], device=self._device)))
        return LaneLayout(self.heads, buckets, lane_N, self._device), origins


def _group(lanes: Counter[LaneKind], spare: int) -> list[list[LaneKind]]:
    """Lane kinds by bucket, the longest first in each; a bucket is full when its padding exceeds `spare` columns."""
    groups: list[list[LaneKind]] = []
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


class Columns:
    """Where every lane of a layout lies in flat storage. Layers whose lanes have the same lengths share one.

    All buckets lie one after another: in each lane first padding, then its kept tokens up to the bucket's width W, then
    room for new ones. So a lane's tokens are neighbours. All is addressed through tensors, for CUDA graphs.
    """

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
        """Storage of the lanes that stay: (bucket number, which of its lanes) each."""
        views = self.views(stored_C)
        return torch.cat([views[number][index].flatten(0, 1) for number, index in origins])

    def select(self, rows: Sequence[int], layout: LaneLayout) -> Columns:
        """Of the rows that `layout` was cut down to."""
        heads = layout.heads
        length_N = [self.length_N[row * heads + head] for row in rows for head in range(heads)]
        return Columns(layout, length_N, self.room, self.kept_N.device)


class Opened:
    """The columns that a batch has opened behind its kept tokens: the same ones in all layers.

    New tokens of all rows share a column. Only a question, which comes first, is padded (on the left), so a row's
    padding is a gap right behind its kept tokens. What a captured step reads lies on the device.
    """

    def __init__(self, rows: int, room: int, device: torch.device) -> None:
        self.room, self.filled = room, 0
        self.count_1 = torch.zeros(1, dtype=torch.long, device=device)  # `filled` on the device
        self.gap_R = torch.zeros(rows, dtype=torch.long, device=device)
        self._gaps: list[int] | None = None  # `gap_R` on the host, once it was asked for
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
