"""Training metrics on disk: the record that MLflow mirrors and the report plots, and how far a run is by them.

Steps are grouped into files by a fixed span, each rewritten whole and atomically, so a resumed run that repeats steps
replaces their rows instead of doubling them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.files import write_whole
from indexmem.progress.status import RunStatus, left_at

RECENT = 10  # steps that speed and loss are averaged over

MetricRow = Mapping[str, Any]


class History:
    """Rows {'step': int, metric: float, ...} under one folder."""

    def __init__(self, folder: str | Path, span: int = 100) -> None:
        self.folder = Path(folder)
        self.span = span

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Store the rows; of rows with the same step, the last written wins."""
        by_span: dict[int, dict[int, dict[str, Any]]] = {}
        for row in rows:
            by_span.setdefault(row["step"] // self.span, {})[row["step"]] = row
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, fresh in by_span.items():
            path = self.folder / f"steps-{number * self.span:08d}.jsonl"
            merged = {row["step"]: row for row in self._read_file(path)} | fresh
            write_whole(path, "".join(json.dumps(merged[step]) + "\n" for step in sorted(merged)))

    def read(self) -> list[dict[str, Any]]:
        """All rows by step."""
        return [row for path in sorted(self.folder.glob("steps-*.jsonl")) for row in self._read_file(path)]

    @staticmethod
    def _read_file(path: Path) -> list[dict[str, Any]]:
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def training_status(experiment: Experiment, history: Sequence[MetricRow]) -> RunStatus:
    """How far the training is. history: all rows so far, by step."""
    config = experiment.distill
    total = config.schedule.steps
    if not history:
        return RunStatus("steps", total, actors=config.workers, note="waiting for the first step")
    done = int(history[-1]["step"]) + 1
    recent = history[-RECENT:]
    tokens_per_second = sum(row["tokens_per_second"] for row in recent) / len(recent)
    rate = tokens_per_second / step_tokens(experiment)
    # Seconds a step, without the first, which waits for all that is loaded.
    taken = [step_tokens(experiment) / row["tokens_per_second"] for row in history[1:][-RECENT:]]
    halves = taken[: len(taken) // 2], taken[len(taken) // 2 :]
    return RunStatus(
        "steps",
        total,
        done,
        rate=rate,
        left_seconds=left_at(total - done, [len(half) / sum(half) for half in halves if half]),
        actors=config.workers,
        tokens_per_second=tokens_per_second,
        measured=recent_losses(history),
    )


def step_tokens(experiment: Experiment) -> int:
    """Tokens of one step of all workers."""
    config = experiment.distill
    return config.sequences_per_step * config.length


def recent_losses(history: Sequence[MetricRow]) -> dict[str, float]:
    """'loss <module>' -> mean over the last steps that have it, for the modules of the last step."""
    means = {}
    for module in by_module(history[-1], "loss"):
        last = [value for row in history[-RECENT:] if (value := by_module(row, "loss").get(module)) is not None]
        means[f"loss {module}"] = sum(last) / len(last)
    return means


def by_module(row: MetricRow, prefix: str) -> dict[str, float]:
    """A metric of each module: the first one's is `loss`, the others' `loss_<module>`, and 'worst layer' is another."""
    names = (name for name in row if name.startswith(f"{prefix}_") and "worst_layer" not in name)
    first = {"indexer": row[prefix]} if prefix in row else {}
    return first | {name.removeprefix(f"{prefix}_"): row[name] for name in names}
