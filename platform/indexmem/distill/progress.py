"""How far a training is, from the metric rows that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.progress.status import RunStatus

RECENT = 10  # steps that speed and loss are averaged over

Row = Mapping[str, Any]


def training_status(experiment: Experiment, history: Sequence[Row]) -> RunStatus:
    """history: all rows so far, by step."""
    config = experiment.distill
    total = config.schedule.steps
    if not history:
        return RunStatus("steps", total, actors=config.workers, note="waiting for the first step")
    done = int(history[-1]["step"]) + 1
    recent = history[-RECENT:]
    tokens_per_second = sum(row["tokens_per_second"] for row in recent) / len(recent)
    rate = tokens_per_second / step_tokens(experiment)
    return RunStatus(
        "steps",
        total,
        done,
        rate=rate,
        eta_seconds=(total - done) / rate,
        actors=config.workers,
        tokens_per_second=tokens_per_second,
        measured=recent_losses(history),
    )


def step_tokens(experiment: Experiment) -> int:
    """Tokens of one step of all workers."""
    config = experiment.distill
    return config.sequences_per_step * config.length


def recent_losses(history: Sequence[Row]) -> dict[str, float]:
    """'loss <module>' -> mean over the last steps that have it, for the modules of the last step."""
    means = {}
    for module in by_module(history[-1], "loss"):
        last = [value for row in history[-RECENT:] if (value := by_module(row, "loss").get(module)) is not None]
        means[f"loss {module}"] = sum(last) / len(last)
    return means


def by_module(row: Row, prefix: str) -> dict[str, float]:
    """A metric of each module: the first one's is `loss`, the others' `loss_<module>`, and 'worst layer' is another."""
    names = (name for name in row if name.startswith(f"{prefix}_") and "worst_layer" not in name)
    first = {"indexer": row[prefix]} if prefix in row else {}
    return first | {name.removeprefix(f"{prefix}_"): row[name] for name in names}
