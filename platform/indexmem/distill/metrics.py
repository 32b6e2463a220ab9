"""A running training as metrics that Ray exports."""

from __future__ import annotations

from collections.abc import Sequence

from indexmem.config.schema import Experiment
from indexmem.distill.progress import Row, by_module, step_tokens
from indexmem.progress.ray_metrics import counter, gauge


class TrainingMetrics:
    """Set by the driver from the metric rows that training writes. `run` is the experiment's name."""

    def __init__(self, experiment: Experiment, history: Sequence[Row]) -> None:
        """history: the rows of earlier starts, whose tokens are not counted again."""
        self._run = {"run": experiment.name}
        self._step_tokens, self._counted = step_tokens(experiment), _steps(history)
        self._step, self._tokens = gauge("indexmem_training_step"), counter("indexmem_training_tokens")
        self._loss, self._norm = gauge("indexmem_training_loss"), gauge("indexmem_training_grad_norm")
        self._rate = gauge("indexmem_training_learning_rate")
        self._speed = gauge("indexmem_training_tokens_per_second")
        self._wanted, self._steps_wanted = gauge("indexmem_training_steps_wanted"), experiment.distill.schedule.steps

    def __call__(self, history: Sequence[Row]) -> None:
        """history: all rows so far."""
        if not history:
            return
        last, steps = history[-1], _steps(history)
        if steps > self._counted:
            self._tokens.inc((steps - self._counted) * self._step_tokens, self._run)
            self._counted = steps
        self._step.set(steps, self._run)
        self._wanted.set(self._steps_wanted, self._run)
        self._rate.set(last["lr"], self._run)
        self._speed.set(last["tokens_per_second"], self._run)
        for metric, prefix in ((self._loss, "loss"), (self._norm, "grad_norm")):
            for module, value in by_module(last, prefix).items():
                metric.set(value, self._run | {"module": module})


def _steps(history: Sequence[Row]) -> int:
    return int(history[-1]["step"]) + 1 if history else 0
