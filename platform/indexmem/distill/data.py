"""Documents -> an endless, deterministic stream of token windows.

Windows never mix documents. The stream depends on (documents, tokenizer, length, seed) alone; worker `rank` of `world`
takes every world-th window, so a run resumed at a step sees exactly the windows that it would have seen.
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


@dataclass(frozen=True)
class WindowStream:
    documents: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    length: int
    seed: int

    def batches(
        self, batch_size: int, rank: int = 0, world: int = 1, start: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Right-padded ids [batch_size, longest] and lengths [batch_size], from optimizer step `start` on."""
        windows = islice(self._shuffled(), start * batch_size * world + rank, None, world)
        while batch := list(islice(windows, batch_size)):
            lengths = torch.tensor([len(window) for window in batch])
            ids = torch.zeros(len(batch), int(lengths.max()), dtype=torch.long)
            for row, window in enumerate(batch):
                ids[row, : len(window)] = torch.tensor(window)
            yield ids, lengths

    def _shuffled(self) -> Iterator[list[int]]:
        rng = random.Random(self.seed)
        buffer: list[list[int]] = []
        for window in self._windows(rng):
            buffer.append(window)
            if len(buffer) >= SHUFFLE_BUFFER:
                yield buffer.pop(rng.randrange(len(buffer)))

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
