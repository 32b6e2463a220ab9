"""How likely each option is behind a question, in all cells at once: teacher-forced, nothing is generated.

Options that differ in their last token alone, such as letters, need one row for all of them.
Shapes: m option tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from indexmem.config.decoding import DecodingConfig
from indexmem.engine.answers import Answer
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.forced import forced_batches, forced_row
from indexmem.models.backbone import Backbone


def answers_of(
    backbone: Backbone, rows: Sequence[DecodeRow], batch_bytes: int | None, decoding: DecodingConfig
) -> list[Answer]:
    """In the order of `rows`: what is generated, or the likeliest of a row's options."""
    chosen: Iterator[Answer] = iter(())
    written: Iterator[Answer] = iter(())
    if choosing := [row for row in rows if row.options]:
        chosen = iter(choose(backbone, choosing, batch_bytes))
    if writing := [row for row in rows if not row.options]:
        written = iter(decode(backbone, writing, batch_bytes, decoding))
    return [next(chosen if row.options else written) for row in rows]


@torch.inference_mode()
def choose(backbone: Backbone, rows: Sequence[DecodeRow], batch_bytes: int | None = None) -> list[Answer]:
    """The likeliest option of each row, with the log-likelihood of all. `batch_bytes` as in `decode`."""
    started = time.perf_counter()
    beginnings = [
        (i, beginning) for i, row in enumerate(rows) for beginning in dict.fromkeys(o[:-1] for o in row.options)
    ]
    forced = [forced_row(rows[i], (*beginning, -1)) for i, beginning in beginnings]
    longest = max(len(option) for row in rows for option in row.options)
    found: list[dict[tuple[int, ...], float]] = [{} for _ in rows]
    for batch, logits_RmV in forced_batches(backbone, forced, longest, batch_bytes):
        for number, logits_mV in zip(batch, logits_RmV):
            i, beginning = beginnings[number]
            found[i].update(_likelihoods(logits_mV, beginning, rows[i].options))
    seconds = time.perf_counter() - started
    return [_answer(row, found[i], seconds, len(rows)) for i, row in enumerate(rows)]


def _likelihoods(
    logits_mV: Tensor, beginning: tuple[int, ...], options: Sequence[tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Of the options with this beginning: sums over their tokens, in nats."""
    log_mV = logits_mV[-len(beginning) - 1 :].float().log_softmax(-1)
    for option in options:
        if option[:-1] == beginning:
            of_m = log_mV.gather(-1, torch.tensor(option, device=log_mV.device)[:, None])
            yield option, float(of_m.double().sum())


def _answer(row: DecodeRow, likelihoods: dict[tuple[int, ...], float], seconds: float, batch: int) -> Answer:
    lengths = [length for layer in range(len(row.cache.kept_HK)) for length in row.cache.lengths(layer)]
    likeliest = max(row.options, key=lambda option: likelihoods[option])
    read = len(row.question_ids) + max(map(len, row.options)) - 1
    return Answer(
        list(likeliest),
        True,
        sum(lengths) / len(lengths) + read,
        max(lengths) + read,
        seconds,
        batch,
        likelihoods=tuple(likelihoods[option] for option in row.options),
    )
