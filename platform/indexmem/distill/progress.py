"""How far a training is, from the metric rows that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.live.status import Curve, Status

RECENT = 10  # steps that speed and loss are averaged over
CURVE_POINTS = 200  # of a curve, however long the training

Row = Mapping[str, Any]


def training_status(experiment: Experiment, history: Sequence[Row]) -> Status:
    """This moment, for people. history: all rows so far, by step."""
    config = experiment.distill
    total = config.schedule.steps
    if not history:
        return Status("training", "steps", total, actors=config.workers, note="waiting for the first step")
    done = int(history[-1]["step"]) + 1
    recent = history[-RECENT:]
    tokens_per_second = sum(row["tokens_per_second"] for row in recent) / len(recent)
    rate = tokens_per_second / step_tokens(experiment)
    return Status(
        "training",
        "steps",
        total,
        done,
        rate=rate,
        eta_seconds=(total - done) / rate,
        actors=config.workers,
        tokens_per_second=tokens_per_second,
        curves=loss_curves(history),
    )


def step_tokens(experiment: Experiment) -> int:
    """Tokens of one step of all workers."""
    config = experiment.distill
    return config.sequences_per_step * config.length


def loss_curves(history: Sequence[Row], points: int = CURVE_POINTS) -> tuple[Curve, ...]:
    """Each module's loss by step, thinned to about `points`, ending in the mean of the last few steps."""
    stride = -(-len(history) // points)
    picked = history[::stride]
    curves = []
    for module in by_module(history[-1], "loss"):
        values = [(int(row["step"]), by_module(row, "loss").get(module)) for row in picked]
        last = [value for row in history[-RECENT:] if (value := by_module(row, "loss").get(module)) is not None]
        known = [(step, value) for step, value in values[:-1] if value is not None]
        curves.append(Curve(f"loss {module}", (*known, (int(history[-1]["step"]), sum(last) / len(last)))))
    return tuple(curves)


def by_module(row: Row, prefix: str) -> dict[str, float]:
    """A metric of each module: the first one's is `loss`, the others' `loss_<module>`, and 'worst layer' is another."""
    names = (name for name in row if name.startswith(f"{prefix}_") and "worst_layer" not in name)
    first = {"indexer": row[prefix]} if prefix in row else {}
    return first | {name.removeprefix(f"{prefix}_"): row[name] for name in names}
