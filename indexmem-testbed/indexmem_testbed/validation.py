"""How much a model answers exactly, on samples that no training batch holds: one forward pass instead of decoding.

A token that is right after the right ones before it is what greedy decoding would give, so an answer whose tokens are
all right is one that decoding would get.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from indexmem.benchmarks.ruler.suite import ruler
from indexmem.texts.documents import load_texts
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.documents import ANSWER, DocumentMaker
from indexmem_testbed.model import WeightedLoss
from indexmem_testbed.tokenizer import load_tokenizer

ATTEMPTS = 4  # to draw a sample that fits, for each one that is wanted

Group = tuple[str, int, list[tuple[Tensor, Tensor]]]  # task, length, (ids [n], whether it is of the answer [n]) each


@dataclass(frozen=True)
class ValidationSet(Dataset[Group]):
    """The samples of each task at each length, as an evaluation would ask them: one question, after a full context."""

    config: PretrainConfig

    @property
    def cases(self) -> list[tuple[int, str]]:
        """(length, task), shortest first."""
        return [(length, task.name) for length in self.config.evaluate_lengths for task in ruler()]

    def groups(self) -> Iterator[Group]:
        """All of them, made by `config.loaders` processes."""
        loaders = self.config.loaders
        context = "spawn" if loaders else None
        return iter(DataLoader(self, batch_size=None, num_workers=loaders, multiprocessing_context=context))

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, number: int) -> Group:
        length, task = self.cases[number]
        made = (self._sample(task, length, attempt) for attempt in range(ATTEMPTS * self.config.evaluate_samples))
        return task, length, list(islice((sample for sample in made if sample), self.config.evaluate_samples))

    def _sample(self, task: str, length: int, attempt: int) -> tuple[Tensor, Tensor] | None:
        rng = random.Random(f"validation/{self.config.seed}/{task}/{length}/{attempt}")
        document = self._maker.make(task, length, rng, asked=1)
        if document is None:
            return None
        return torch.from_numpy(document.ids.astype(np.int64)), torch.from_numpy(document.weights == ANSWER)

    @cached_property
    def _maker(self) -> DocumentMaker:
        return DocumentMaker(load_tokenizer(), "\n\n".join(load_texts([self.config.heldout])))


@torch.no_grad()
def exact_match(module: WeightedLoss, samples: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> float:
    """Share of the samples whose answer is right to the last token."""
    ids_BL = torch.zeros(len(samples), max(ids.numel() for ids, _ in samples), dtype=torch.long)
    answer_BL = torch.zeros(ids_BL.shape, dtype=torch.bool)
    for row, (ids, answer) in enumerate(samples):
        ids_BL[row, : ids.numel()], answer_BL[row, : ids.numel()] = ids, answer  # padding follows, and is never seen
    ids_BL, answer_BL = ids_BL.to(device), answer_BL.to(device)
    guesses_BL = module.logits(ids_BL)[:, :-1].argmax(dim=-1)
    right_BL = (guesses_BL == ids_BL[:, 1:]) | ~answer_BL[:, 1:]
    return right_BL.all(dim=1).float().mean().item()
