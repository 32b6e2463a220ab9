"""Decoding of many cells as one batch: each row its own compressed cache, question, draws and end.

The text of a row equals what the cell gives alone: rows share columns and matmuls, never attention or random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from indexmem.config.decoding import DecodingConfig
from indexmem.engine.cache import RaggedCache
from indexmem.engine.endings import Endings
from indexmem.engine.generation import Answer, DecodeRow, Generation
from indexmem.engine.recompress import Recompression, room_for
from indexmem.engine.sampling import RowChoice, TokenChoice
from indexmem.engine.steps import Steps
from indexmem.models.backbone import Backbone

CPU_BATCH_BYTES = 2 * 2**30
GPU_SHARE = 0.75  # of free memory: the rest is for padding, masks and activations

GREEDY = DecodingConfig()


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
        members.sort(key=lambda i: _kept_first(rows[i]))
        for batch in plan_batches([_row_bytes(rows[i]) for i in members], limit):
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


def _row_bytes(row: DecodeRow) -> int:
    """K and V of a row when its answer is longest; a sliding-window layer holds its window and the question."""
    question, new = len(row.question_ids), row.max_new_tokens
    room = room_for(question, new, row.policy)
    lengths = [length for layer in range(len(row.cache.kept_HK)) for length in row.cache.lengths(layer)]
    heads, tokens = len(lengths), sum(lengths)
    if row.compression is not None:  # in the mean: heads may share the budget
        tokens = max(tokens, min(heads * row.compression.budget, tokens + heads * (question + new)))
    tokens += heads * room
    keys_HLd = row.cache.keys_HLd[0]
    tokens += sum(keys_HLd.shape[0] * (window.size + question) for window in row.cache.windows)
    return 2 * tokens * keys_HLd.shape[-1] * keys_HLd.element_size()


def _kept_first(row: DecodeRow) -> tuple[bool, int]:
    """Sorts rows so that those that can share buffers are neighbours, the longest first."""
    return row.cache.memories is not None, -row.cache.kept_HK[0].shape[1]


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


@torch.inference_mode()
def _decode_batch(backbone: Backbone, rows: list[DecodeRow], decoding: DecodingConfig) -> list[Answer]:
    started = time.perf_counter()
    question = max(len(row.question_ids) for row in rows)
    longest = max(row.max_new_tokens for row in rows)
    cache = RaggedCache([row.cache for row in rows], room_for(question, longest, rows[0].policy), at_once=question)
    endings = [Endings(backbone.tokenizer, backbone.eos_ids, row.stop, row.min_new_tokens) for row in rows]
    choices = [
        RowChoice(row.max_new_tokens, row.seed, ending.forbidden, row.min_new_tokens)
        for row, ending in zip(rows, endings)
    ]
    choice = TokenChoice(choices, decoding, cache.device)
    compressions = [row.compression for row in rows if row.compression is not None]
    if not compressions:
        generation = Generation(rows, endings, cache, Steps(backbone, cache, {}, choice), choice)
        generation.run()
    else:
        contexts = [(row.cache, row.context_tokens) for row in rows]
        recompression = Recompression(backbone.model, cache, contexts, compressions)
        with recompression.watching() as watched:
            steps = Steps(backbone, cache, watched, choice)
            generation = Generation(rows, endings, cache, steps, choice, recompression)
            generation.run()
    seconds = time.perf_counter() - started
    return [generation.answer(row, seconds) for row in range(len(rows))]
