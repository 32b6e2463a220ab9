"""How a training run is described, watched and published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.distill.history import training_status
from indexmem.distill.runs import DistillRun
from indexmem.distill.trainees.registry import make_trainees
from indexmem.eviction.checkpoint import read_config, weights_hash
from indexmem.models.backbone import inspect
from indexmem.progress.view import LINE_SECONDS, ProgressView, say
from indexmem.tracking.distill_runs import Checkpoint
from indexmem.tracking.mlflow_sink import MlflowSink


def describe_modules(experiment: Experiment) -> list[str]:
    """Size of everything that the spec trains: parameters and, for memories, the state that each sequence carries."""
    lines = []
    for trainee in make_trainees(experiment, inspect(experiment.model)):
        count = sum(p.numel() for p in trainee.parameters())
        state = getattr(trainee.trained, "state_bytes", None)
        carries = "" if state is None else f", state {state / 2**20:.2f} MiB a sequence"
        lines.append(f"{trainee.name}: {count:,} parameters ({count // len(trainee.trained):,} a module){carries}")
    return lines


def describe_losses(history: Sequence[dict[str, Any]]) -> str:
    """First and last value of every loss, for example 'loss 0.33 -> 0.15'."""
    names = [name for name in history[-1] if name.startswith("loss") and "worst" not in name]
    first = {name: next(row[name] for row in history if name in row) for name in names}
    return ", ".join(f"{name} {first[name]:.4f} -> {history[-1][name]:.4f}" for name in names)


def mirror_training(
    experiment: Experiment, run: DistillRun, sink: MlflowSink | None, history: Sequence[dict[str, Any]]
) -> str | None:
    """Mirror the run to MLflow, say where it is and return that.

    None when tracking is off or MLflow did not take it.
    """
    if sink is None:
        return None
    trainees = make_trainees(experiment, inspect(experiment.model))
    sizes = {f"{t.name}.parameters": sum(p.numel() for p in t.parameters()) for t in trainees}
    where = sink.publish_distill(
        experiment,
        run.id,
        history,
        checkpoint=_checkpoint(run) if run.finished else None,
        finished=run.finished,
        wait=True,
        params=sizes,
    )
    if where:
        say(f"MLflow: {where}")
    return where


def _checkpoint(run: DistillRun) -> Checkpoint:
    modules = read_config(run.final)["modules"]
    return Checkpoint(run.final, {name: weights_hash(run.final, name) for name in modules})


class TrainingWatch:
    """Shows a training while it runs, and mirrors its metrics to MLflow now and then."""

    def __init__(self, experiment: Experiment, run: DistillRun, sink: MlflowSink | None, view: ProgressView) -> None:
        self.experiment, self.run, self.sink, self.view = experiment, run, sink, view
        self.published_at, self.published_step = time.monotonic(), -1

    def __call__(self, history: Sequence[dict[str, Any]]) -> None:
        self.view(training_status(self.experiment, history))
        if self.sink is None or not history or time.monotonic() - self.published_at < LINE_SECONDS:
            return
        if history[-1]["step"] != self.published_step:
            self.sink.publish_distill(self.experiment, self.run.id, history)
            self.published_at, self.published_step = time.monotonic(), history[-1]["step"]
