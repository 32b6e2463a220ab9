"""How far a pre-training is, from the metric rows that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from indexmem.distill.history import RECENT
from indexmem.progress.status import RunStatus
from indexmem_testbed.config import PretrainConfig

EXACT = "exact_niah_"  # followed by a length: the mean over the needle tasks


def pretraining_status(config: PretrainConfig, history: Sequence[Mapping[str, Any]]) -> RunStatus:
    """history: all rows so far, by step."""
    if not history:
        return RunStatus("steps", config.steps, actors=config.workers, note="waiting for the first step")
    done = int(history[-1]["step"]) + 1
    recent = history[-RECENT:]
    tokens_per_second = sum(row["tokens_per_second"] for row in recent) / len(recent)
    rate = tokens_per_second / config.step_tokens
    return RunStatus(
        "steps",
        config.steps,
        done,
        rate=rate,
        eta_seconds=(config.steps - done) / rate,
        actors=config.workers,
        tokens_per_second=tokens_per_second,
        measured=_latest(config, history),
    )


def _latest(config: PretrainConfig, history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The last loss, and of each length the last accuracy, which few steps have."""
    names = {"loss": "loss"} | {f"{EXACT}{length}": f"exact {length}" for length in config.evaluate_lengths}
    values = {name: row[metric] for row in history for metric, name in names.items() if metric in row}
    return {name: float(values[name]) for name in names.values() if name in values}
