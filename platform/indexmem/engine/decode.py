"""Greedy decoding of many cells as one batch: each row its own compressed cache, question and end.

The text of a row equals what the cell gives alone: rows share columns and matmuls, never attention.
Shapes: R rows, n question tokens (padded).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from indexmem.config.schema import EvictionConfig
from indexmem.engine.cache import RaggedCache
from indexmem.engine.recompress import Compression, Recompression, room_for
from indexmem.engine.steps import Steps
from indexmem.eviction.context import RowCache
from indexmem.models.backbone import Backbone

# Finished rows are dropped once fewer than this share is still running. On a GPU each time costs a new graph.
COMPACT_BELOW = {"cpu": 0.75, "cuda": 0.25}


CPU_BATCH_BYTES = 2 * 2**30
GPU_SHARE = 0.75  # of free memory: the rest is for padding, masks and activations


@dataclass(frozen=True)
class DecodeRow:
    """One cell of one sample, ready to answer."""

    cache: RowCache
    context_tokens: int  # original length: positions continue from here
    question_ids: list[int]
    max_new_tokens: int
    compression: Compression | None = None  # of the growing cache; None: it only grows

    @property
    def policy(self) -> EvictionConfig | None:
        return None if self.compression is None else self.compression.config


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]  # the ending token included, as kvpress does
    seconds: float  # the batch's wall time
    batch: int  # rows in the batch


def decode(backbone: Backbone, rows: Sequence[DecodeRow], batch_bytes: int | None = None) -> list[Answer]:
    """Greedy answers in the order of `rows`; batches hold at most `batch_bytes` of cache (one row at least).

    None takes 2 GiB on a CPU, and of a GPU most of the memory that is free now.
    Rows that are compressed as they grow go in batches of their own: they need less room.
    """
    answers: dict[int, Answer] = {}
    limit = free_for_batches(backbone.device) if batch_bytes is None else batch_bytes
    for policy in dict.fromkeys(row.policy for row in rows):
        members = [i for i, row in enumerate(rows) if row.policy == policy]
        members.sort(key=lambda i: _kept_first(rows[i]))
        for batch in plan_batches([_row_bytes(rows[i]) for i in members], limit):
            indices = [members[i] for i in batch]
            answers.update(zip(indices, _decode_or_split(backbone, [rows[i] for i in indices])))
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


def _row_bytes(row: DecodeRow) -> int:
    """K and V of a row when its answer is longest; a sliding-window layer holds its window and the question."""
    question, new = len(row.question_ids), row.max_new_tokens
    room = room_for(question, new, row.policy)
    limit = None if row.compression is None else row.compression.budget
    tokens = 0
    for layer in range(len(row.cache.kept_HK)):
        for kept in row.cache.lengths(layer):
            tokens += room + (kept if limit is None else max(kept, min(limit, kept + question + new)))
    keys_HLd = row.cache.keys_HLd[0]
    tokens += sum(keys_HLd.shape[0] * (window.size + question) for window in row.cache.windows)
    return 2 * tokens * keys_HLd.shape[-1] * keys_HLd.element_size()


def _kept_first(row: DecodeRow) -> tuple[bool, int]:
    """Sorts rows so that those that can share buffers are neighbours, the longest first."""
    return row.cache.memories is not None, -row.cache.kept_HK[0].shape[1]


def _decode_or_split(backbone: Backbone, rows: list[DecodeRow]) -> list[Answer]:
    """A batch that does not fit is halved until it does; a single row that does not fit is the caller's error."""
    try:
        return _decode_batch(backbone, rows)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()
    half = len(rows) // 2
    return _decode_or_split(backbone, rows[:half]) + _decode_or_split(backbone, rows[half:])


@torch.inference_mode()
def _decode_batch(backbone: Backbone, rows: list[DecodeRow]) -> list[Answer]:
    started = time.perf_counter()
    question = max(len(row.question_ids) for row in rows)
    longest = max(row.max_new_tokens for row in rows)
    cache = RaggedCache([row.cache for row in rows], room_for(question, longest, rows[0].policy), at_once=question)
    compressions = [row.compression for row in rows if row.compression is not None]
    if not compressions:
        generated = _generate(rows, cache, Steps(backbone, cache, {}), backbone.eos_ids)
    else:
        contexts = [(row.cache, row.context_tokens) for row in rows]
        recompression = Recompression(backbone.model, cache, contexts, compressions)
        with recompression.watching() as watched:
            steps = Steps(backbone, cache, watched)
            generated = _generate(rows, cache, steps, backbone.eos_ids, recompression)
    seconds = time.perf_counter() - started
    return [Answer(ids, seconds, len(rows)) for ids in generated]


def _generate(
    rows: list[DecodeRow],
    cache: RaggedCache,
    steps: Steps,
    eos_ids: Sequence[int],
    recompression: Recompression | None = None,
) -> list[list[int]]:
    """Token ids of each row's answer."""
    device = cache.device
    question = max(len(row.question_ids) for row in rows)
    longest = max(row.max_new_tokens for row in rows)
    eos = torch.tensor(eos_ids, device=device, dtype=torch.long)
    limit_R = torch.tensor([row.max_new_tokens for row in rows], device=device)

    pad_R = torch.tensor([question - len(row.question_ids) for row in rows], device=device)
    ids_Rn = torch.tensor([[0] * (question - len(row.question_ids)) + row.question_ids for row in rows], device=device)
    columns_n = torch.arange(question, device=device)
    start_R = torch.tensor([row.context_tokens for row in rows], device=device)
    positions_Rn = (start_R - pad_R)[:, None] + columns_n
    token_R = steps.feed(ids_Rn, positions_Rn.clamp(min=0), columns_n >= pad_R[:, None])
    position_R = positions_Rn[:, -1] + 1

    row_R = torch.arange(len(rows), device=device)  # original index of each row still in the batch
    running_R = torch.ones_like(row_R, dtype=torch.bool)
    generated: list[list[int]] = [[] for _ in rows]
    for produced in range(1, longest + 1):
        for row, token, running in zip(row_R.tolist(), token_R.tolist(), running_R.tolist()):
            if running:
                generated[row].append(token)
        running_R &= ~torch.isin(token_R, eos) & (limit_R[row_R] > produced)
        if not running_R.any():
            break
        if running_R.float().mean() < COMPACT_BELOW[device.type]:
            keep_R = running_R.nonzero().squeeze(1)
            cache.select(keep_R)
            if recompression is not None:
                recompression.select(keep_R)
            row_R, running_R, token_R, position_R = (x[keep_R] for x in (row_R, running_R, token_R, position_R))
        if recompression is not None and (produced - 1) % recompression.config.decode_every == 0:
            recompression.compress(remaining=longest - produced)
        token_R = steps.next(token_R, position_R, longest - produced)
        position_R = position_R + 1
    return generated
