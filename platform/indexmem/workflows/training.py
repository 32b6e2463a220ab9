"""How a training run is described, watched and published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.distill.history import History
from indexmem.distill.runs import DistillRun
from indexmem.distill.trainees.registry import make_trainees
from indexmem.models.backbone import inspect
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.workflows.terminal import PROGRESS_SECONDS, say


def read_history(experiment: Experiment, run: DistillRun) -> list[dict[str, Any]]:
    """What the run's steps measured, one dict a step."""
    return History(run.history, span=experiment.distill.checkpoint_every).read()


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


def publish_training(
    experiment: Experiment, run: DistillRun, sink: MlflowSink | None, history: Sequence[dict[str, Any]]
) -> None:
    """Mirror the run to MLflow and say where it is; nothing when tracking is off."""
    if sink is None:
        return
    trainees = make_trainees(experiment, inspect(experiment.model))
    sizes = {f"{t.name}.parameters": sum(p.numel() for p in t.parameters()) for t in trainees}
    where = sink.publish_distill(
        experiment,
        run.id,
        history,
        artifacts={"checkpoint": run.final} if run.finished else None,
        finished=run.finished,
        params=sizes,
    )
    if where:
        say(f"MLflow: {where}")


class TrainingMeter:
    """Prints a line now and then while training, and mirrors the metrics to MLflow."""

    def __init__(self, experiment: Experiment, run: DistillRun, sink: MlflowSink | None) -> None:
        self.experiment, self.run, self.sink = experiment, run, sink
        self.printed_at, self.printed_step = time.monotonic(), -1

    def __call__(self, history: Sequence[dict[str, Any]]) -> None:
        if not history or time.monotonic() - self.printed_at < PROGRESS_SECONDS:
            return
        step, total = history[-1]["step"] + 1, self.experiment.distill.schedule.steps
        if step == self.printed_step:
            return
        recent = history[-10:]
        loss = sum(row["loss"] for row in recent) / len(recent)
        rate = sum(row["tokens_per_second"] for row in recent) / len(recent)
        tokens = self.experiment.distill.workers * self.experiment.distill.batch_size * self.experiment.distill.length
        left = (total - step) * tokens / rate
        say(f"  step {step}/{total}  loss {loss:.4f}  {rate:.0f} tokens/s  about {left:.0f} s left")
        self.printed_at, self.printed_step = time.monotonic(), step
        if self.sink is not None:
            self.sink.publish_distill(self.experiment, self.run.id, history)
