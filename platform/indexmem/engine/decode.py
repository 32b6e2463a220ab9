"""Decoding, from compressed contexts to answers. Read this file first; what it calls are the chapters:

1. Rows are put together to batches that fit into memory: here.
2. Pack: a batch's compressed contexts go into buffers. cache.py; which buffer, and where in it: lanes.py
3. Step: a forward pass feeds the questions, then a token a row at a time. steps.py
   New K and V are stored and attended to (lane_attention.py), the latent memory of evicted tokens is read
   (memories.py), and layers with a sliding window see their windows (rings.py).
4. Sample: each pass gives the next token of each row, until something ends its answer. sampling.py
   A conversation then reads its next question, a token a step, behind that answer. answers.py
5. Every so many tokens grown caches are compressed again. recompress.py

The text of a row equals what the cell gives alone: rows share columns and matmuls, never attention or random numbers.
Shapes: R rows, H KV heads, n question tokens (padded).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from indexmem.config.decoding import DecodingConfig
from indexmem.config.schema import EvictionConfig
from indexmem.engine.answers import Answer, FollowUp, HeldTokens, RowTurns
from indexmem.engine.cache import RaggedCache
from indexmem.engine.recompress import Compression, Recompression, room_for
from indexmem.engine.sampling import Endings, RowChoice, TokenChoice
from indexmem.engine.steps import Steps
from indexmem.eviction.context import RowCache
from indexmem.models.backbone import Backbone

CPU_BATCH_BYTES = 2 * 2**30
GPU_SHARE = 0.75  # of free memory: the rest is for padding, masks and activations
# Finished rows are dropped once fewer than this share is still running. On a GPU each time costs a new graph.
COMPACT_BELOW = {"cpu": 0.75, "cuda": 0.25}

GREEDY = DecodingConfig()


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
    follow_ups: tuple[FollowUp, ...] = ()
    options: tuple[tuple[int, ...], ...] = ()  # token ids, of which the likeliest are the answer: see options.py

    @property
    def steps(self) -> int:
        """Tokens at most behind the first question: answers and further questions, which are read token by token."""
        return self.max_new_tokens + sum(len(each.question_ids) + each.max_new_tokens for each in self.follow_ups)

    @property
    def policy(self) -> EvictionConfig | None:
        return None if self.compression is None else self.compression.config

    @property
    def bytes_at_end(self) -> int:
        """K and V when the answer is longest; a sliding-window layer holds its window and the question."""
        question, new = len(self.question_ids), self.steps
        lengths = [length for layer in range(len(self.cache.kept_HK)) for length in self.cache.lengths(layer)]
        heads, tokens = len(lengths), sum(lengths)
        if self.compression is not None:  # in the mean: heads may share the budget
            tokens = max(tokens, min(heads * self.compression.budget, tokens + heads * (question + new)))
        tokens += heads * room_for(question, new, self.policy)
        keys_HLd = self.cache.keys_HLd[0]
        tokens += sum(keys_HLd.shape[0] * (window.size + question) for window in self.cache.windows)
        return 2 * tokens * keys_HLd.shape[-1] * keys_HLd.element_size()

    @property
    def batch_order(self) -> tuple[bool, int]:
        """Sorts rows so that those that can share buffers are neighbours, the longest first."""
        return self.cache.memories is not None, -self.cache.kept_HK[0].shape[1]


def decode(
    backbone: Backbone,
    rows: Sequence[DecodeRow],
    batch_bytes: int | None = None,
    decoding: DecodingConfig = GREEDY,
) -> list[Answer]:
    """Answers in the order of `rows`; batches hold at most `batch_bytes` of cache (one row at least).

    None takes 2 GiB on a CPU, and of a GPU most of the memory that is free now.
    Rows that are compressed as they grow go in batches of their own: they need less room.
    """
    answers: dict[int, Answer] = {}
    limit = free_for_batches(backbone.device) if batch_bytes is None else batch_bytes
    for policy in dict.fromkeys(row.policy for row in rows):
        members = [i for i, row in enumerate(rows) if row.policy == policy]
        members.sort(key=lambda i: rows[i].batch_order)
        for batch in plan_batches([rows[i].bytes_at_end for i in members], limit):
            indices = [members[i] for i in batch]
            answers.update(zip(indices, _decode_or_split(backbone, [rows[i] for i in indices], decoding)))
    return [answers[i] for i in range(len(rows))]


def free_for_batches(device: torch.device) -> int:
    """Bytes that a batch may take unless the user says so; what does not fit after all is split."""
    if device.type != "cuda":
        return CPU_BATCH_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(GPU_SHARE * (free + unused))


def plan_batches(row_bytes: Sequence[int], batch_bytes: int) -> list[list[int]]:
    """Rows in their order, as many to a batch as fit, one at least."""
    batches: list[list[int]] = []
    room = 0
    for index, size in enumerate(row_bytes):
        if size > room or not batches:
            batches.append([])
            room = batch_bytes
        batches[-1].append(index)
        room -= size
    return batches


def _decode_or_split(backbone: Backbone, rows: list[DecodeRow], decoding: DecodingConfig) -> list[Answer]:
    """A batch that does not fit is halved until it does; a single row that does not fit is the caller's error."""
    try:
        return _decode_batch(backbone, rows, decoding)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()
    half = len(rows) // 2
    return _decode_or_split(backbone, rows[:half], decoding) + _decode_or_split(backbone, rows[half:], decoding)


def padded_questions(rows: Sequence[DecodeRow], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, positions (negative ones of padding that would begin before the context) and validity, [R, n]: questions of
    several lengths, padded on the left."""
    longest = max(len(row.question_ids) for row in rows)
    pads = [longest - len(row.question_ids) for row in rows]
    pad_R1 = torch.tensor(pads, device=device)[:, None]
    ids_Rn = torch.tensor([[0] * pad + row.question_ids for pad, row in zip(pads, rows)], device=device)
    columns_n = torch.arange(longest, device=device)
    start_R1 = torch.tensor([row.context_tokens for row in rows], device=device)[:, None]
    return ids_Rn, start_R1 - pad_R1 + columns_n, columns_n >= pad_R1


@torch.inference_mode()
def _decode_batch(backbone: Backbone, rows: list[DecodeRow], decoding: DecodingConfig) -> list[Answer]:
    return DecodeBatch(backbone, rows, decoding).run()


class DecodeBatch:
    """A batch's answers as they grow. Rows are known by their number in `rows`; in the batch they move up."""

    def __init__(self, backbone: Backbone, rows: list[DecodeRow], decoding: DecodingConfig) -> None:
        self._started = time.perf_counter()
        self._backbone, self._rows = backbone, rows
        self._question = max(len(row.question_ids) for row in rows)
        self._longest = max(row.steps for row in rows)
        room = room_for(self._question, self._longest, rows[0].policy)
        self._cache = RaggedCache([row.cache for row in rows], room, at_once=self._question)
        self._endings = [Endings(backbone.tokenizer, backbone.eos_ids, row.stop, row.min_new_tokens) for row in rows]
        choices = [
            RowChoice(row.steps, row.seed, ending.forbidden, row.min_new_tokens)
            for row, ending in zip(rows, self._endings)
        ]
        self._choice = TokenChoice(choices, decoding, self._cache.device)
        self._recompression: Recompression | None = None
        if compressions := [row.compression for row in rows if row.compression is not None]:
            contexts = [(row.cache, row.context_tokens) for row in rows]
            self._recompression = Recompression(backbone.model, self._cache, contexts, compressions)
        self._batch = list(range(len(rows)))  # rows still in it, running or not
        self._running = set(self._batch)
        self._ended: set[int] = set()
        self._turns = [RowTurns(row.max_new_tokens, row.follow_ups) for row in rows]
        self._held = HeldTokens(self._cache, len(rows))

    def run(self) -> list[Answer]:
        """Read the questions, then generate until every row has ended or is at its limit."""
        with nullcontext({}) if self._recompression is None else self._recompression.watching() as watched:
            self._generate(Steps(self._backbone, self._cache, watched, self._choice))
        seconds = time.perf_counter() - self._started
        return [
            Answer(first, row in self._ended, *self._held.of(row), seconds, len(self._rows), tuple(later))
            for row, (first, *later) in enumerate(turns.answers for turns in self._turns)
        ]

    def _generate(self, steps: Steps) -> None:
        token_R, position_R = self._read_questions(steps)
        self._held.measure(self._batch)
        for produced in range(1, self._longest + 1):
            self._held.count(self._running)
            forced = self._take(token_R.tolist())
            if not self._running:
                break
            if forced:
                token_R = token_R.clone()
                token_R[list(forced)] = torch.tensor(list(forced.values()), device=token_R.device)
            if len(self._running) < COMPACT_BELOW[self._cache.device.type] * len(self._batch):
                token_R, position_R = self._drop_finished(token_R, position_R)
            recompression = self._recompression
            if recompression is not None and (produced - 1) % recompression.config.decode_every == 0:
                recompression.compress(remaining=self._longest - produced)
                self._held.measure(self._batch)
            token_R = steps.next(token_R, position_R, self._longest - produced, bool(forced))
            position_R = position_R + 1
            self._held.grow()

    def _read_questions(self, steps: Steps) -> tuple[Tensor, Tensor]:
        """Each row's first token, and the position at which it is fed."""
        ids_Rn, positions_Rn, valid_Rn = padded_questions(self._rows, self._cache.device)
        token_R = steps.feed(ids_Rn, positions_Rn.clamp(min=0), valid_Rn)
        return token_R, positions_Rn[:, -1] + 1

    def _take(self, tokens: list[int]) -> dict[int, int]:
        """Take the batch's newest tokens; rows that end with them stop running. Returns what is to be fed instead of
        some of them, by place in the batch: tokens of follow-ups."""
        forced: dict[int, int] = {}
        for place, (row, token) in enumerate(zip(self._batch, tokens)):
            if row not in self._running:
                continue
            turns = self._turns[row]
            if turns.forced:
                forced[place] = turns.forced.popleft()
                continue
            turns.answers[-1].append(token)
            ended = self._endings[row].reached(turns.answers[-1])
            if not ended and len(turns.answers[-1]) < turns.limit:
                continue
            if turns.follow():
                if token in self._backbone.eos_ids:
                    forced[place] = turns.forced.popleft()
                continue
            self._running.remove(row)
            if ended:
                self._ended.add(row)
        return forced

    def _drop_finished(self, token_R: Tensor, position_R: Tensor) -> tuple[Tensor, Tensor]:
        staying = [index for index, row in enumerate(self._batch) if row in self._running]
        keep_R = torch.tensor(staying, device=self._cache.device)
        self._cache.select(keep_R)
        self._choice.select(keep_R)
        if self._recompression is not None:
            self._recompression.select(keep_R)
        self._batch = [self._batch[index] for index in staying]
        return token_R[keep_R], position_R[keep_R]
