"""A trial's training in one process, and how any training of a trial is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.distill.history import History
from indexmem.distill.loop import STATE, LocalContext, distill
from indexmem.distill.runs import DistillRun
from indexmem.models.backbone import Backbone
from indexmem.sweep.metrics import training_metrics

Report = Callable[[str, Mapping[str, float]], None]  # id of the training, metrics after {'step': ...} steps


class SpanReporter:
    """Reports the mean losses of every `checkpoint_every` steps, once each, in order, from the history on disk.

    A training that goes on after an interruption reports its earlier spans too, so what decides by them sees the same.
    """

    def __init__(self, experiment: Experiment, run: DistillRun, report: Report) -> None:
        self._span, self._total = experiment.distill.checkpoint_every, experiment.distill.schedule.steps
        self._history, self._reported = History(run.history, self._span), 0
        self._report, self._id = report, run.id

    def update(self, done: int | None = None) -> None:
        """Report the spans that are complete after `done` steps; default: those that the history knows."""
        rows = self._history.read()
        done = done if done is not None else (rows[-1]["step"] + 1 if rows else 0)
        while (end := min(self._reported + self._span, self._total)) <= done and self._reported < end:
            inside = [row for row in rows if self._reported <= row["step"] < end]
            self._reported = end
            self._report(self._id, {"step": end, **training_metrics(inside)})


@dataclass(frozen=True)
class TrialContext(LocalContext):
    """One process that keeps its last checkpoints only and reports at each."""

    keep: int = 2
    on_checkpoint: Callable[[int], None] = lambda step: None

    def checkpoint(self, folder: Path | None, metrics: dict[str, Any]) -> None:
        super().checkpoint(folder, metrics)
        for old in self.checkpoints()[: -self.keep]:
            shutil.rmtree(old)
        self.on_checkpoint(int(metrics["step"]))

    def checkpoints(self) -> list[Path]:
        """Complete ones, the oldest first."""
        return sorted(path.parent for path in self.folder.glob(f"step-*/{STATE}"))


def train_here(experiment: Experiment, run: DistillRun, backbone: Backbone, report: Report) -> None:
    """Train to the end in this process and publish the run; goes on from its last checkpoint."""
    folder = run.folder / "trial"
    for unfinished in folder.glob("writing-*"):
        shutil.rmtree(unfinished)
    reporter = SpanReporter(experiment, run, report)
    context = TrialContext(folder, keep=experiment.distill.keep_checkpoints, on_checkpoint=reporter.update)
    distill(experiment, context, History(run.history, experiment.distill.checkpoint_every), backbone)
    run.finish(context.checkpoints()[-1], leave_out=(STATE,))
