"""Documents -> an endless, deterministic stream of token windows.

Windows never mix documents: a document is cut into windows, and what is left of it at the end is a shorter window.
Windows of a micro-batch are of similar length: padded to the longest, or packed into one row without padding. Where
texts have weights, each has epochs of its own, and the next window is of the text that is furthest behind its share.

The stream depends on (documents, shares, tokenizer, length, seed, micro-batch size, packing) alone. Where it is after a
step is a `Position` of a few kilobytes a text: a run resumed there, on any number of workers, sees exactly the windows
that it would have seen, and only documents with windows in the buffer are tokenised again. Every rank reads the whole
stream and takes its share, which needs no exchange and costs each rank the tokenising of all (a core does a million
tokens a second or more).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from indexmem.config.distill import DistillConfig
from indexmem.distill.corpus import open_corpora
from indexmem.errors import UserError
from indexmem.models.prompt import encode

SHUFFLE_BUFFER = 256  # windows mixed at a time, so that neighbours in a batch come from different documents
MIN_WINDOW = 64  # shorter remainders hold too few keys to rank
MOST_BLOCKS = 2**20  # what is shuffled: documents, or in larger corpora blocks of neighbours, which bounds the memory


@dataclass(frozen=True)
class MicroBatch:
    """Windows: right-padded rows [B, longest], or packed one after the other into a row [1, tokens]."""

    ids_BL: Tensor
    lengths_D: Tensor  # of the windows; padded, D = B
    packed: bool = False

    @property
    def padding(self) -> float:
        """TextShare of padding in the padded batch; packing spares the backbone this."""
        return 1 - int(self.lengths_D.sum()) / (len(self.lengths_D) * int(self.lengths_D.max()))


@dataclass(frozen=True)
class TextShare:
    """Documents, by their numbers, and their part of the tokens relative to other shares."""

    documents: range
    weight: float = 1.0
    name: str = "distill.texts"


# Of a share: state of the random numbers before its epoch's order was drawn, index in that order of the document that
# is being cut, token at which the next window begins, and tokens of all windows so far.
SharePosition = tuple[tuple[Any, ...], int, int, int]


@dataclass(frozen=True)
class Position:
    """What a stream needs to go on: plain values, for a checkpoint."""

    now: tuple[Any, ...]  # state of the random numbers
    places: tuple[SharePosition, ...]  # of each share
    buffer: tuple[tuple[int, int], ...]  # document and first token of each window in the buffer

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Position:
        """From the fields in a checkpoint; before there were shares, it named the position of the only one in three."""
        if "places" in state:
            return cls(**state)
        only = (state["epoch"], state["document"], state["begin"], 0)
        return cls(state["now"], (only,), state["buffer"])


@dataclass(frozen=True)
class StepBatches:
    """A rank's micro-batches of an optimizer step, and where the stream is after it."""

    micro_batches: list[MicroBatch]
    position: Position


@dataclass(frozen=True)
class WindowStream:
    documents: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    length: int
    seed: int
    packing: bool = False
    shares: tuple[TextShare, ...] = ()  # of which the documents consist; without any they are one

    @classmethod
    def of(cls, config: DistillConfig, tokenizer: PreTrainedTokenizerBase) -> WindowStream:
        """Of the texts in a spec. Raises UserError when one cannot be read (distill/corpus.py)."""
        joined = open_corpora(config.texts)
        shares = [
            TextShare(documents, text.weight, f"'{text}' in distill.texts")
            for text, documents in zip(config.texts, joined.ranges)
            if text.weight is not None
        ]
        return cls(joined, tokenizer, config.length, config.seed, config.packing, tuple(shares))

    def steps(
        self, size: int, per_step: int = 1, rank: int = 0, world: int = 1, position: Position | None = None
    ) -> Iterator[StepBatches]:
        """Optimizer steps from `position` on, by default from the first: this rank's part of `per_step` micro-batches.

        A micro-batch is `size` windows, or packed a row of up to `size` x `length` tokens. Rank r of a world of w takes
        numbers r, r + w, ... of each step; all ranks together take each once.
        """
        assert 0 <= rank < world <= per_step, "each rank needs a micro-batch of every step"
        reader = _Reader(self, position)
        while True:
            step = [self._choose(reader, size) for _ in range(per_step)]
            make = _packed if self.packing else _padded
            yield StepBatches([make(windows) for windows in step[rank::world]], reader.position())

    @property
    def least(self) -> int:
        """Tokens of the shortest window."""
        return min(MIN_WINDOW, self.length)

    def tokens(self, document: int) -> list[int]:
        return encode(self.tokenizer, self.documents[document])

    def check(self) -> None:
        """Raise UserError when no document of a share is long enough; reads until one is."""
        for share in self.all_shares:
            # A token has at least a byte, so most short documents need no tokenising.
            long_enough = (n for n in share.documents if len(self.documents[n].encode()) >= self.least)
            if not any(len(self.tokens(number)) >= self.least for number in long_enough):
                raise UserError(
                    f"No document of {share.name} has {self.least} tokens; there is nothing to train on. "
                    "Join short lines into longer documents."
                )

    @property
    def all_shares(self) -> Sequence[TextShare]:
        return self.shares or [TextShare(range(len(self.documents)))]

    def _choose(self, reader: _Reader, size: int) -> list[list[int]]:
        """One window of the buffer at random and those that are nearest to it in length."""
        room = size * self.length
        reader.fill(max(SHUFFLE_BUFFER, size), tokens=2 * room if self.packing else 0)
        chosen = reader.take(reader.random.randrange(len(reader.buffer)))
        lengths = [len(window.ids) for window in reader.buffer]
        if self.packing:
            indices = first_fit(lengths, len(chosen.ids), room - len(chosen.ids))
        else:
            indices = nearest_in_length(lengths, len(chosen.ids), size - 1)
        return [chosen.ids, *(reader.take(index).ids for index in sorted(indices, reverse=True))]


@dataclass(frozen=True)
class _Window:
    document: int
    begin: int
    ids: list[int]


class _Reader:
    """A buffer of windows, and where the next ones come from: the share whose tokens are furthest behind its weight.

    That keeps the tokens read of any two shares in proportion up to one window, at any time.
    """

    def __init__(self, stream: WindowStream, position: Position | None) -> None:
        self.stream = stream
        self.random = random.Random(stream.seed)
        self.buffer: list[_Window] = []
        self._cutters = [_Cutter(stream, share, self.random) for share in stream.all_shares]
        if position is not None:
            self._restore(position)

    def fill(self, windows: int, tokens: int) -> None:
        """Read on until the buffer holds so many windows and tokens."""
        held = sum(len(window.ids) for window in self.buffer)
        while len(self.buffer) < windows or held < tokens:
            behind = min(self._cutters, key=lambda cutter: cutter.given / cutter.share.weight)
            self.buffer.append(window := behind.next())
            held += len(window.ids)

    def take(self, index: int) -> _Window:
        return self.buffer.pop(index)

    def position(self) -> Position:
        """Where to go on after what has been taken."""
        buffer = tuple((window.document, window.begin) for window in self.buffer)
        return Position(self.random.getstate(), tuple(cutter.position() for cutter in self._cutters), buffer)

    def _restore(self, position: Position) -> None:
        for cutter, share in zip(self._cutters, position.places, strict=True):
            cutter.restore(share)
        self.random.setstate(position.now)
        tokens = {document: self.stream.tokens(document) for document in {document for document, _ in position.buffer}}
        for document, begin in position.buffer:
            self.buffer.append(_Window(document, begin, tokens[document][begin : begin + self.stream.length]))


class _Cutter:
    """Cuts the documents of a share into windows, epoch by epoch, each in a new order.

    Documents are tokenised as they come, so a short run reads only what it needs of a large corpus.
    """

    def __init__(self, stream: WindowStream, share: TextShare, random: random.Random) -> None:
        self.stream, self.share, self.random = stream, share, random
        self.given = 0  # tokens of all windows so far
        self._begin_epoch()

    def position(self) -> SharePosition:
        return self._epoch, self._index, self._begin, self.given

    def restore(self, position: SharePosition) -> None:
        """Go on there; leaves the random numbers as they were within its epoch."""
        epoch, document, begin, given = position
        self.random.setstate(epoch)
        self._begin_epoch()
        self._index, self._begin, self.given, self._found = document, begin, given, True

    def _begin_epoch(self) -> None:
        self._epoch = self.random.getstate()
        self._block = -(-len(self.share.documents) // MOST_BLOCKS)  # documents of one
        count = -(-len(self.share.documents) // self._block)
        self._order = self.random.sample(range(count), count)
        self._index, self._begin, self._found = 0, 0, False
        self._ids: list[int] | None = None  # of the document that is being cut

    def next(self) -> _Window:
        """The next window that is not too short."""
        documents = self.share.documents
        while True:
            if self._index == len(self._order) * self._block:
                assert self._found, "checked before: some document is long enough"
                self._begin_epoch()
            number = self._order[self._index // self._block] * self._block + self._index % self._block
            if self._ids is None:
                self._ids = self.stream.tokens(documents[number]) if number < len(documents) else []
            begin, ids = self._begin, self._ids[self._begin : self._begin + self.stream.length]
            self._begin += self.stream.length
            if self._begin >= len(self._ids):
                self._index, self._begin, self._ids = self._index + 1, 0, None
            if len(ids) >= self.stream.least:
                self._found = True
                self.given += len(ids)
                return _Window(documents[number], begin, ids)


def _padded(windows: Sequence[list[int]]) -> MicroBatch:
    lengths = torch.tensor([len(window) for window in windows])
    ids = torch.zeros(len(windows), int(lengths.max()), dtype=torch.long)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = torch.tensor(window)
    return MicroBatch(ids, lengths)


def _packed(windows: Sequence[list[int]]) -> MicroBatch:
    row = torch.tensor([token for window in windows for token in window])
    return MicroBatch(row[None], torch.tensor([len(window) for window in windows]), packed=True)


def nearest_in_length(lengths: Sequence[int], to: int, count: int) -> list[int]:
    """Indices of the `count` windows that are nearest in length to `to`: a batch with little padding."""
    return _by_distance(lengths, to)[:count]


def first_fit(lengths: Sequence[int], to: int, room: int) -> list[int]:
    """Indices of the windows that together fill `room` tokens: the nearest in length first, each that still fits.

    Of similar length, so that the padded batch into which attention and losses split the row has little padding too.
    """
    indices = []
    for index in _by_distance(lengths, to):
        if lengths[index] <= room:
            indices.append(index)
            room -= lengths[index]
    return indices


def _by_distance(lengths: Sequence[int], to: int) -> list[int]:
    """Of two equally near, the one that has waited longer comes first."""
    return sorted(range(len(lengths)), key=lambda index: abs(lengths[index] - to))
