"""The answers of one batch, from reading the questions to the last row's end.

Shapes: R rows, n question tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from indexmem.config.schema import EvictionConfig
from indexmem.engine.cache import RaggedCache
from indexmem.engine.endings import Endings
from indexmem.engine.held import HeldTokens
from indexmem.engine.recompress import Compression, Recompression
from indexmem.engine.sampling import TokenChoice
from indexmem.engine.steps import Steps
from indexmem.eviction.context import RowCache

# Finished rows are dropped once fewer than this share is still running. On a GPU each time costs a new graph.
COMPACT_BELOW = {"cpu": 0.75, "cuda": 0.25}


@dataclass(frozen=True)
class DecodeRow:
    """One cell of one sample, ready to answer."""

    cache: RowCache
    context_tokens: int  # original length: positions continue from here
    question_ids: list[int]
    max_new_tokens: int
    compression: Compression | None = None  # of the growing cache; None: it only grows
    stop: tuple[str, ...] = ()  # texts that end the answer
    min_new_tokens: int = 0  # nothing ends it before
    seed: int = 0  # of its draws, when they are drawn

    @property
    def policy(self) -> EvictionConfig | None:
        return None if self.compression is None else self.compression.config


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]  # the ending token included, as kvpress does
    ended: bool  # False: cut at its limit
    held_mean: float  # tokens that a head held, over steps, layers and heads
    held_max: int
    seconds: float  # the batch's wall time
    batch: int  # rows in the batch


class Generation:
    """A batch's answers as they grow. Rows are known by their number in `rows`; in the batch they move up."""

    def __init__(
        self,
        rows: list[DecodeRow],
        endings: list[Endings],
        cache: RaggedCache,
        steps: Steps,
        choice: TokenChoice,
        recompression: Recompression | None = None,
    ) -> None:
        self._rows, self._endings, self._cache = rows, endings, cache
        self._steps, self._choice, self._recompression = steps, choice, recompression
        self._batch = list(range(len(rows)))  # rows still in it, running or not
        self._running = set(self._batch)
        self._ended: set[int] = set()
        self._generated: list[list[int]] = [[] for _ in rows]
        self._held = HeldTokens(cache, len(rows))

    def answer(self, row: int, seconds: float) -> Answer:
        """What a row has given; `seconds` are the batch's."""
        mean, most = self._held.of(row)
        return Answer(self._generated[row], row in self._ended, mean, most, seconds, len(self._rows))

    def run(self) -> None:
        """Read the questions, then generate until every row has ended or is at its limit."""
        token_R, position_R = self._read_questions()
        self._held.measure(self._batch)
        longest = max(row.max_new_tokens for row in self._rows)
        for produced in range(1, longest + 1):
            self._held.count(self._running)
            self._take(token_R.tolist())
            if not self._running:
                break
            if len(self._running) < COMPACT_BELOW[self._cache.device.type] * len(self._batch):
                token_R, position_R = self._drop_finished(token_R, position_R)
            recompression = self._recompression
            if recompression is not None and (produced - 1) % recompression.config.decode_every == 0:
                recompression.compress(remaining=longest - produced)
                self._held.measure(self._batch)
            token_R = self._steps.next(token_R, position_R, longest - produced)
            position_R = position_R + 1
            self._held.grow()

    def _read_questions(self) -> tuple[Tensor, Tensor]:
        """Each row's first token, and the position at which it is fed."""
        device = self._cache.device
        question = max(len(row.question_ids) for row in self._rows)
        pads = [question - len(row.question_ids) for row in self._rows]
        pad_R = torch.tensor(pads, device=device)
        ids_Rn = torch.tensor([[0] * pad + row.question_ids for pad, row in zip(pads, self._rows)], device=device)
        columns_n = torch.arange(question, device=device)
        start_R = torch.tensor([row.context_tokens for row in self._rows], device=device)
        positions_Rn = (start_R - pad_R)[:, None] + columns_n
        token_R = self._steps.feed(ids_Rn, positions_Rn.clamp(min=0), columns_n >= pad_R[:, None])
        return token_R, positions_Rn[:, -1] + 1

    def _take(self, tokens: list[int]) -> None:
        """Append the batch's newest tokens; rows that end with them stop running."""
        for row, token in zip(self._batch, tokens):
            if row not in self._running:
                continue
            generated = self._generated[row]
            generated.append(token)
            if self._endings[row].reached(generated):
                self._ended.add(row)
            if row in self._ended or len(generated) == self._rows[row].max_new_tokens:
                self._running.remove(row)

    def _drop_finished(self, token_R: Tensor, position_R: Tensor) -> tuple[Tensor, Tensor]:
        places = [place for place, row in enumerate(self._batch) if row in self._running]
        keep_R = torch.tensor(places, device=self._cache.device)
        self._cache.select(keep_R)
        self._choice.select(keep_R)
        if self._recompression is not None:
            self._recompression.select(keep_R)
        self._batch = [self._batch[place] for place in places]
        return token_R[keep_R], position_R[keep_R]
