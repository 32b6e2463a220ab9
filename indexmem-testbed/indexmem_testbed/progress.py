"""How far a pre-training is, from the metric rows that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from indexmem.distill.progress import CURVE_POINTS, RECENT
from indexmem.live.status import Curve, Status
from indexmem_testbed.config import PretrainConfig

EXACT = "exact_niah_"  # followed by a length: the mean over the needle tasks


def pretraining_status(config: PretrainConfig, history: Sequence[Mapping[str, Any]]) -> Status:
    """This moment, for people. history: all rows so far, by step."""
    if not history:
        return Status("training", "steps", config.steps, actors=config.workers, note="waiting for the first step")
    done = int(history[-1]["step"]) + 1
    recent = history[-RECENT:]
    tokens_per_second = sum(row["tokens_per_second"] for row in recent) / len(recent)
    rate = tokens_per_second / config.step_tokens
    return Status(
        "training",
        "steps",
        config.steps,
        done,
        rate=rate,
        eta_seconds=(config.steps - done) / rate,
        actors=config.workers,
        tokens_per_second=tokens_per_second,
        curves=(_curve("loss", "loss", history), *_exact_curves(config, history)),
    )


def _exact_curves(config: PretrainConfig, history: Sequence[Mapping[str, Any]]) -> list[Curve]:
    curves = (_curve(f"{EXACT}{length}", f"exact {length}", history) for length in config.evaluate_lengths)
    return [curve for curve in curves if curve.points]


def _curve(metric: str, name: str, history: Sequence[Mapping[str, Any]]) -> Curve:
    points = [(int(row["step"]), float(row[metric])) for row in history if metric in row]
    return Curve(name, tuple(points[:: -(-len(points) // CURVE_POINTS) or 1]))
