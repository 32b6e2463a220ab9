"""A grid in this process alone, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.driver import assignment_of, drive, store_outcome
from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.progress import Progress
from indexmem.evaluate.work import Backlog, Mask
from indexmem.evaluate.worker import Worker
from indexmem.locks.leases import Leases
from indexmem.models.backbone import Backbone

UNIT_SAMPLES = {"cpu": 1, "cuda": 8}  # evaluated together, unless the spec says how many


def evaluate_here(
    experiment: Experiment, plan: GridPlan, provenance: Mapping[str, Any], backbone: Backbone | None = None
) -> Generator[Progress, None, None]:
    """Evaluate what the store lacks in this process; yields the progress after every few samples, when they are stored.

    Ends when every cell has a row for every sample, failed rows included; a second call tries failed ones again. A
    caller may stop early, and closes the generator then, so that other drivers may take its cells. When memory runs
    out, less is evaluated at once. `backbone`: the spec's model, if it is loaded already. Raises torch.AcceleratorError
    when the device has failed for good.
    """

    def work(missing: Mapping[str, Mask], progress: Progress, leases: Leases) -> Iterator[Progress]:
        evaluator = CellEvaluator.load(experiment, plan.methods, plan.checkpoint, provenance, backbone)
        samples = experiment.grid.samples_per_batch or UNIT_SAMPLES[evaluator.backbone.device.type]
        worker = Worker(assignment_of(experiment, plan, provenance), evaluator)
        # A lost lease: this process stood still, and another driver took the cells over.
        yield from evaluate_units(worker, plan, missing, progress, samples, lambda: leases.lost)

    yield from drive(experiment, plan, work)


def evaluate_units(
    worker: Worker,
    plan: GridPlan,
    missing: Mapping[str, Mask],
    progress: Progress,
    samples: int,
    lost: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:
    """Evaluate and store these rows, `samples` samples at a time. Ends early, storing no more, once `lost` says so."""
    backlog = Backlog(missing, plan.contexts)
    progress.actors = 1
    while backlog.rows:
        unit = backlog.take(samples, backlog.rows)
        outcome = worker.run(unit)
        if lost():
            return
        store_outcome(plan, unit, outcome, progress)
        yield progress
