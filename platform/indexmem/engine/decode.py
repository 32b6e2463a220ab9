"""Greedy decoding of many cells as one batch: each row its own compressed cache, question and end.

The text of a row equals what the cell gives alone: rows share columns and matmuls, never attention.
Shapes: R rows, n question tokens (padded).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from indexmem.config.schema import EvictionConfig
from indexmem.engine.cache import RaggedCache
from indexmem.engine.recompress import Compression, Recompression, room_for
from indexmem.eviction.context import RowCache
from indexmem.models.backbone import Backbone

COMPACT_BELOW = 0.75  # drop finished rows once fewer than this share is still running


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


def decode(backbone: Backbone, rows: Sequence[DecodeRow], batch_bytes: int) -> list[Answer]:
    """Greedy answers in the order of `rows`; batches hold at most `batch_bytes` of cache (one row at least).

    Rows that are compressed as they grow go in batches of their own: they need less room.
    """
    answers: dict[int, Answer] = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        members = [i for i, row in enumerate(rows) if row.policy == policy]
        for batch in plan_batches([_row_bytes(rows[i]) for i in members], batch_bytes):
            indices = [members[i] for i in batch]
            answers.update(zip(indices, _decode_or_split(backbone, [rows[i] for i in indices])))
    return [answers[i] for i in range(len(rows))]


def plan_batches(row_bytes: Sequence[int], batch_bytes: int) -> list[list[int]]:
    """Group rows of similar size, so that little is padding: every row counts as its batch's largest."""
    batches: list[list[int]] = []
    for index in sorted(range(len(row_bytes)), key=lambda i: -row_bytes[i]):
        if batches and (len(batches[-1]) + 1) * row_bytes[batches[-1][0]] <= batch_bytes:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _row_bytes(row: DecodeRow) -> int:
    new = room_for([row.cache], len(row.question_ids), row.max_new_tokens, row.policy)
    return sum(
        2 * keys.element_size() * keys.shape[0] * keys.shape[-1] * (kept.shape[1] + new)
        for keys, kept in zip(row.cache.keys_HLd, row.cache.kept_HK)
    )


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
    caches = [row.cache for row in rows]
    cache = RaggedCache(caches, room=room_for(caches, question, longest, rows[0].policy))
    compressions = [row.compression for row in rows if row.compression is not None]
    if not compressions:
        generated = _generate(backbone, cache, rows)
    else:
        contexts = [(row.cache, row.context_tokens) for row in rows]
        recompression = Recompression(backbone.model, cache, contexts, compressions)
        with recompression.watching() as watched:
            generated = _generate(backbone, cache, rows, recompression, watched)
    seconds = time.perf_counter() - started
    return [Answer(ids, seconds, len(rows)) for ids in generated]


def _generate(
    backbone: Backbone,
    cache: RaggedCache,
    rows: list[DecodeRow],
    recompression: Recompression | None = None,
    watched: Mapping[str, Any] = MappingProxyType({}),
) -> list[list[int]]:
    """Token ids of each row's answer; `watched` are the keywords that let the recompression see forward passes."""
    device = backbone.device
    question = max(len(row.question_ids) for row in rows)
    longest = max(row.max_new_tokens for row in rows)
    eos = torch.tensor(backbone.eos_ids, device=device, dtype=torch.long)
    limit_R = torch.tensor([row.max_new_tokens for row in rows], device=device)

    pad_R = torch.tensor([question - len(row.question_ids) for row in rows], device=device)
    ids_Rn = torch.tensor([[0] * (question - len(row.question_ids)) + row.question_ids for row in rows], device=device)
    columns_n = torch.arange(question, device=device)
    start_R = torch.tensor([row.context_tokens for row in rows], device=device)
    positions_Rn = (start_R - pad_R)[:, None] + columns_n
    token_R = _step(backbone, cache, ids_Rn, positions_Rn.clamp(min=0), columns_n >= pad_R[:, None], watched)
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
        if running_R.float().mean() < COMPACT_BELOW:
            keep_R = running_R.nonzero().squeeze(1)
            cache.select(keep_R)
            if recompression is not None:
                recompression.select(keep_R)
            row_R, running_R, token_R, position_R = (x[keep_R] for x in (row_R, running_R, token_R, position_R))
        if recompression is not None and (produced - 1) % recompression.config.decode_every == 0:
            recompression.compress(remaining=longest - produced)
        valid_R1 = torch.ones_like(token_R[:, None]).bool()
        token_R = _step(backbone, cache, token_R[:, None], position_R[:, None], valid_R1, watched)
        position_R = position_R + 1
    return generated


def _step(
    backbone: Backbone,
    cache: RaggedCache,
    ids_Rn: Tensor,
    positions_Rn: Tensor,
    valid_Rn: Tensor,
    watched: Mapping[str, Any],
) -> Tensor:
    """Feed n tokens per row; the greedy next token of each row [R]."""
    cache.extend(valid_Rn)
    with cache.memories.adding_residuals(backbone.model):
        logits_R1V = backbone.model(
            ids_Rn,
            past_key_values=cache,
            position_ids=positions_Rn,
            cache_position=torch.arange(ids_Rn.shape[1], device=ids_Rn.device),
            use_cache=True,
            kv_view=cache,
            logits_to_keep=1,
            **watched,
        ).logits
    return logits_R1V[:, -1].argmax(dim=-1)
