"""Documents -> an endless, deterministic stream of token windows.

Windows never mix documents: a document is cut into windows, and what is left of it at the end is a shorter window.
Windows of a micro-batch are of similar length, so that little of it is padding. The stream depends on (documents,
tokenizer, length, seed, micro-batch size) alone: a run resumed at a step, or on another number of workers, sees exactly
the windows that it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from indexmem.models.prompt import encode

SHUFFLE_BUFFER = 256  # windows mixed at a time, so that neighbours in a batch come from different documents
MIN_WINDOW = 64  # shorter remainders hold too few keys to rank

MicroBatch = tuple[Tensor, Tensor]  # right-padded ids [B, longest], lengths [B]


@dataclass(frozen=True)
class WindowStream:
    documents: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    length: int
    seed: int

    def steps(
        self, size: int, per_step: int = 1, rank: int = 0, world: int = 1, start: int = 0
    ) -> Iterator[list[MicroBatch]]:
        """Optimizer steps from `start` on: this rank's part of the `per_step` micro-batches of `size` windows each.

        Rank r of a world of w takes numbers r, r + w, ...; all ranks together take each once.
        """
        assert 0 <= rank < world <= per_step, "each rank needs a micro-batch of every step"
        numbered = islice(self._micro_batches(size), start * per_step, None)
        while step := list(islice(numbered, per_step)):
            yield [_padded(windows) for windows in step[rank::world]]

    def _micro_batches(self, size: int) -> Iterator[list[list[int]]]:
        """One window at random and those of the buffer that are nearest to it in length."""
        rng = random.Random(self.seed)
        buffer: list[list[int]] = []
        for window in self._windows(rng):
            buffer.append(window)
            if len(buffer) < max(SHUFFLE_BUFFER, size):
                continue
            length = len(chosen := buffer.pop(rng.randrange(len(buffer))))
            nearest = sorted(range(len(buffer)), key=lambda place: abs(len(buffer[place]) - length))[: size - 1]
            others = [buffer.pop(place) for place in sorted(nearest, reverse=True)]
            yield [chosen, *others]

    def _windows(self, rng: random.Random) -> Iterator[list[int]]:
        """Windows of up to `length` tokens, document by document; a new order each epoch.

        Documents are tokenised as they come, so a short run reads only what it needs of a large corpus.
        """
        while True:
            found = False
            for index in rng.sample(range(len(self.documents)), len(self.documents)):
                ids = encode(self.tokenizer, self.documents[index])
                for begin in range(0, len(ids), self.length):
                    window = ids[begin : begin + self.length]
                    if len(window) >= min(MIN_WINDOW, self.length):
                        found = True
                        yield window
            if not found:
                raise ValueError(f"no document has {min(MIN_WINDOW, self.length)} tokens; nothing to train on")


def _padded(windows: Sequence[list[int]]) -> MicroBatch:
    lengths = torch.tensor([len(window) for window in windows])
    ids = torch.zeros(len(windows), int(lengths.max()), dtype=torch.long)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = torch.tensor(window)
    return ids, lengths
