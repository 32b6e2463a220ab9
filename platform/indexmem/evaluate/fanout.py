"""The Ray fan-out: warm actors take samples, the driver stores rows as they come.

A sample is the unit of work and carries all its cells. The driver is the only writer; an actor that dies is replaced
and its sample tried again, elsewhere, a limited number of times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from indexmem.config.schema import Experiment, MethodConfig
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import GridPlan, Task
from indexmem.evaluate.rows import Row, failed_row
from indexmem.runtime import check_resources

IN_FLIGHT = 2  # tasks queued per actor, so that none waits for the driver


class Evaluator:
    """The actor: one loaded model."""

    def __init__(
        self,
        spec: dict[str, Any],
        methods: dict[str, dict[str, Any]],
        checkpoint: str | None,
        provenance: dict[str, Any],
        threads: int,
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        configs = {label: MethodConfig.model_validate(config) for label, config in methods.items()}
        self.cells = CellEvaluator.load(Experiment.model_validate(spec), configs, checkpoint, provenance)

    def evaluate(self, task: Task) -> tuple[list[Row], list[Row]]:
        return self.cells.evaluate([task])


@dataclass
class Progress:
    """How far a grid is; rows are (sample, cell) pairs."""

    total: int
    done: int
    failed: int = 0
    started: float = field(default_factory=time.monotonic)
    at_start: int = 0

    @property
    def eta_seconds(self) -> float | None:
        fresh = self.done - self.at_start
        elapsed = time.monotonic() - self.started
        return None if fresh <= 0 else elapsed / fresh * (self.total - self.done)


def run_grid(
    experiment: Experiment,
    plan: GridPlan,
    provenance: Mapping[str, Any],
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Evaluate what the store lacks. Returns when every cell has a row for every sample, failed rows included."""
    tasks = deque(plan.remaining())
    missing = sum(len(task.cells) for task in tasks)
    progress = Progress(total=plan.row_count, done=plan.row_count - missing, at_start=plan.row_count - missing)
    on_progress(progress)
    if not tasks:
        return progress
    crew = _Crew(experiment, plan, provenance, limit=len(tasks))
    attempts: dict[str, int] = {}
    while tasks or crew.pending:
        while tasks and crew.has_room:
            crew.submit(tasks.popleft())
        task, outcome = crew.next_result()
        if isinstance(outcome, ray.exceptions.RayActorError):
            attempts[task.sample.id] = attempts.get(task.sample.id, 0) + 1
            if attempts[task.sample.id] < experiment.grid.max_attempts:
                tasks.append(task)
                continue
        if isinstance(outcome, Exception):
            rows = [
                failed_row(experiment, task.sample, c, plan.model_fingerprint, outcome, provenance) for c in task.cells
            ]
            retention: list[Row] = []
        else:
            rows, retention = outcome
        partition = f"{plan.model_fingerprint}-{task.cells[0].benchmark_build}"
        plan.store.append(retention, partition, "retention")
        plan.store.append(rows, partition)
        progress.done += len(rows)
        progress.failed += sum(row["status"] != "ok" for row in rows)
        on_progress(progress)
    return progress


class _Crew:
    """The actors and what each is doing."""

    def __init__(self, experiment: Experiment, plan: GridPlan, provenance: Mapping[str, Any], limit: int) -> None:
        grid = experiment.grid
        check_resources(grid.actors or 1, grid.cpus_per_actor, grid.gpus_per_actor)
        total = ray.cluster_resources()
        fits = int(total["CPU"] // grid.cpus_per_actor)
        if grid.gpus_per_actor:
            fits = min(fits, int(total.get("GPU", 0) / grid.gpus_per_actor))
        self._factory = ray.remote(num_cpus=grid.cpus_per_actor, num_gpus=grid.gpus_per_actor)(Evaluator).remote
        self._arguments = (
            experiment.model_dump(mode="json"),
            {label: config.model_dump(mode="json") for label, config in plan.methods.items()},
            plan.checkpoint,
            dict(provenance),
            grid.cpus_per_actor,
        )
        self._load: dict[Any, int] = {self._hire(): 0 for _ in range(min(grid.actors or fits, limit))}
        self.pending: dict[Any, tuple[Task, Any]] = {}

    @property
    def has_room(self) -> bool:
        return min(self._load.values()) < IN_FLIGHT

    def submit(self, task: Task) -> None:
        actor = min(self._load, key=self._load.__getitem__)
        self.pending[actor.evaluate.remote(task)] = (task, actor)
        self._load[actor] += 1

    def next_result(self) -> tuple[Task, Any]:
        """The next finished task with its rows, or with the exception that ended it. A dead actor is replaced."""
        (reference,), _ = ray.wait(list(self.pending), num_returns=1)
        task, actor = self.pending.pop(reference)
        outcome: Any
        try:
            outcome = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            outcome = error
            if self._load.pop(actor, None) is not None:
                self._load[self._hire()] = 0
        except ray.exceptions.RayTaskError as error:
            outcome = error.cause if isinstance(error.cause, Exception) else error
        if actor in self._load:
            self._load[actor] -= 1
        return task, outcome

    def _hire(self) -> Any:
        return self._factory(*self._arguments)
