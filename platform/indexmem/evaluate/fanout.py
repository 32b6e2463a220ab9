"""The fan-out of a grid: what is missing, who computes it, until nothing is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.evaluate.dispatch import Dispatch, OnProgress
from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.progress import Progress
from indexmem.evaluate.scores import PartialScores
from indexmem.evaluate.units import Mask
from indexmem.evaluate.worker import Assignment, Load, load_evaluator, packed_samples
from indexmem.lease import Lease, Leases
from indexmem.signals import StopSignals

WAIT_SECONDS = 3.0  # between looks at another driver's leases
SMALL_PART, MANY_PARTS = 2_000, 64  # rows in a part file, and neighbours so small, that make merging worth it


def run_grid(
    experiment: Experiment,
    plan: GridPlan,
    provenance: Mapping[str, Any],
    on_progress: OnProgress = lambda progress: None,
    load: Load = load_evaluator,
) -> Progress:
    """Evaluate what the store lacks; needs a connection to Ray.

    Returns when every cell has a row for every sample, failed rows included, or once a signal has stopped it
    (`Progress.stopped_by`). Cells that another driver works on are waited for. Damaged files of the store are moved
    aside, and what they held is computed again. `on_progress` is called about twice a
    second. Raises UserError when no actor fits or can load, or when another driver takes over.
    """
    progress = Progress(plan.row_count)
    open_cells = set(plan.cell_ids)  # neither tried here nor finished elsewhere
    plan.store.set_aside(plan.partitions)
    with StopSignals() as stop, Leases(run_root(experiment) / "leases") as leases:
        while open_cells and stop.received is None:
            open_cells = _lacking(plan, _look(plan, open_cells, progress))
            mine, held = leases.claim(open_cells)
            if mine:
                # A driver that ended just now may have stored rows since they were looked for.
                missing = _only(plan, _look(plan, open_cells, progress), mine)
                progress.start()
                on_progress(progress)
                assignment = assignment_of(experiment, plan, provenance)
                Dispatch(plan, assignment, missing, progress, on_progress).run(load, stop, leases.check)
                open_cells -= mine
                leases.release()
            elif held:
                _await(leases, held, open_cells, stop, lambda note: _tell(progress, note, on_progress))
        if stop.received is None:
            _tidy(plan, leases)
    progress.stopped_by, progress.actors, progress.note = stop.received, 0, ""
    on_progress(progress)
    return progress


def assignment_of(experiment: Experiment, plan: GridPlan, provenance: Mapping[str, Any]) -> Assignment:
    """What the actors of this plan must know."""
    return Assignment(
        experiment,
        plan.methods,
        plan.cells_of,
        {benchmark: packed_samples(samples) for benchmark, samples in plan.samples.items()},
        plan.model_fingerprint,
        plan.checkpoint,
        dict(provenance),
    )


def _tell(progress: Progress, note: str, on_progress: OnProgress) -> None:
    progress.note = note
    on_progress(progress)


def _look(plan: GridPlan, cells: set[str], progress: Progress) -> dict[str, Mask]:
    """The rows of these cells that the store lacks; all others count as done."""
    stored = plan.scores()
    progress.scores = progress.scores or PartialScores(plan.cells_of, {b: len(s) for b, s in plan.samples.items()})
    for benchmark, score_SC in stored.items():
        progress.scores.stored(benchmark, score_SC)
    missing = _only(plan, {benchmark: np.isnan(score_SC) for benchmark, score_SC in stored.items()}, cells)
    progress.done = plan.row_count - sum(int(missing_SC.sum()) for missing_SC in missing.values())
    return missing


def _only(plan: GridPlan, missing: Mapping[str, Mask], cells: set[str] | frozenset[str]) -> dict[str, Mask]:
    """The missing rows of these cells."""
    return {
        benchmark: missing_SC & [cell.id in cells for cell in plan.cells_of[benchmark]]
        for benchmark, missing_SC in missing.items()
    }


def _lacking(plan: GridPlan, missing: Mapping[str, Mask]) -> set[str]:
    """Ids of the cells with missing rows."""
    return {
        cell.id
        for benchmark, missing_SC in missing.items()
        for cell, lacks in zip(plan.cells_of[benchmark], np.any(missing_SC, axis=0).tolist())
        if lacks
    }


def _await(leases: Leases, held: list[Lease], cells: set[str], stop: StopSignals, tell: Callable[[str], None]) -> None:
    """Until one of the other drivers has let go of its cells, or a signal."""
    names = {lease.path for lease in held}
    who = "; ".join(f"{len(lease.cells & cells)} cells of {lease.owner} ({lease.path})" for lease in held)
    while stop.received is None and names <= {lease.path for lease in leases.others()}:
        tell(f"waiting for {who}. To take over, end that run, or delete its lease file if it hangs.")
        time.sleep(WAIT_SECONDS)
    tell("")


def _tidy(plan: GridPlan, leases: Leases) -> None:
    """Merge small files, unless another driver does."""
    for partition in plan.partitions:
        mine, _ = leases.claim({partition})
        if mine:
            plan.store.compact(partition, below=SMALL_PART, parts=MANY_PARTS)
    leases.release()
