"""Training batches by step: a pure function of (settings, tokenizer, step), so a run resumed anywhere goes on exactly.

Every row is filled to its last token: a document that may be as long as the row, then others in what is left.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from indexmem.models.prompt import encode
from indexmem.texts.documents import load_texts
from indexmem_testbed.config import PretrainConfig, StageConfig
from indexmem_testbed.dense import DENSE, repeats
from indexmem_testbed.documents import TEXT, Document, DocumentMaker
from indexmem_testbed.tokenizer import load_tokenizer

TEXT_TASK = "text"
SHORTEST = 128  # tokens that a task needs to be worth trying; what is left of a row below is filled with repeats
WHOLE = 0.6  # of the documents take all that is left of their row
AHEAD = 4  # batches that each process makes in advance

Batch = tuple[Tensor, Tensor]  # ids [B, L] int64, loss weights [B, L] float32


@dataclass(frozen=True)
class PretrainStream(Dataset[Batch]):
    """This rank's rows of each step: rows r, r + world, ... of the step's batch."""

    config: PretrainConfig
    rank: int = 0
    world: int = 1

    def batches(self, start: int) -> Iterator[Batch]:
        """Batches from step `start` on, made by `config.loaders` processes in advance."""
        loaders = self.config.loaders
        return iter(
            DataLoader(
                self,
                batch_size=None,
                sampler=range(start, self.config.steps),
                num_workers=loaders,
                prefetch_factor=AHEAD if loaders else None,
                multiprocessing_context="spawn" if loaders else None,
                pin_memory=torch.cuda.is_available(),
            )
        )

    def __getitem__(self, step: int) -> Batch:
        """This rank's part of a step's batch."""
        stage = self.config.stage(step)
        numbers = range(self.config.step_tokens // stage.length)[self.rank :: self.world]
        rows = [self.row(stage, random.Random(f"{self.config.seed}/{step}/{number}")) for number in numbers]
        ids_BL = np.stack([row.ids for row in rows]).astype(np.int64)
        weights_BL = np.stack([row.weights for row in rows]).astype(np.float32) / 10
        return torch.from_numpy(ids_BL), torch.from_numpy(weights_BL)

    def row(self, stage: StageConfig, rng: random.Random) -> Document:
        """One sequence of exactly `stage.length` tokens."""
        pieces: list[Document] = []
        room = stage.length
        while room:
            pieces.append(self._document(room, stage.dense, rng))
            room -= len(pieces[-1])
        return Document(np.concatenate([p.ids for p in pieces]), np.concatenate([p.weights for p in pieces]))

    def _document(self, room: int, dense: float, rng: random.Random) -> Document:
        """A document of at most `room` tokens."""
        numpy_rng = np.random.default_rng(rng.getrandbits(64))
        vocabulary = self._vocabulary
        if room < SHORTEST:
            return repeats(room, vocabulary, numpy_rng)
        length = room if rng.random() < WHOLE else rng.randint(SHORTEST, room)
        if rng.random() < dense:
            return DENSE[rng.choice(list(DENSE))](length, vocabulary, numpy_rng)
        (task,) = rng.choices(list(self.config.mixture), list(self.config.mixture.values()))
        if task == TEXT_TASK:
            return self._text(length, rng)
        return self._maker.make(task, length, rng) or repeats(SHORTEST, vocabulary, numpy_rng)

    def _text(self, length: int, rng: random.Random) -> Document:
        """Plain text as it stands, begun anywhere."""
        ids = encode(self._tokenizer, f"{self._tokenizer.bos_token}{self._maker.excerpt(length, rng)}")
        return Document.of([(ids[:length], TEXT)])

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer()

    @cached_property
    def _vocabulary(self) -> int:
        """Its size, for which the tokenizer counts anew each time."""
        return len(self._tokenizer)

    @cached_property
    def _maker(self) -> DocumentMaker:
        return DocumentMaker(self._tokenizer, "\n\n".join(load_texts(self.config.texts)))
