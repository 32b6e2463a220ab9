"""One driver of a grid: it takes cells that no other driver holds, has their missing rows computed, waits for the rest.

Several drivers may share a store: leases keep them apart. `work` computes: actors (fanout.py) or this process
(local.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.progress import PartialScores, Progress
from indexmem.evaluate.work import Assignment, Mask, Unit, packed_samples
from indexmem.evaluate.worker import UnitOutcome
from indexmem.locks.leases import Lease, Leases
from indexmem.signals import StopSignals

WAIT_SECONDS = 1.0  # between looks at another driver's leases
SMALL_PART, MANY_PARTS = 2_000, 64  # rows in a part file, and neighbours so small, that make merging worth it

# (missing rows, progress to count in, leases on them) -> computes and stores them, yielding the progress now and then
Work = Callable[[Mapping[str, Mask], Progress, Leases], Iterator[Progress]]


def drive(
    experiment: Experiment, plan: GridPlan, work: Work, stop: StopSignals | None = None
) -> Generator[Progress, None, None]:
    """Have `work` compute what the store lacks; yields the progress whenever it has changed.

    Ends when every cell has a row for every sample, failed rows included, or once `stop` has received a signal
    (`Progress.stopped_by`). Cells that another driver works on are waited for. Damaged files of the store are moved
    aside, and what they held is computed again.
    """
    stop = stop or StopSignals()
    progress = Progress(plan.row_count)
    open_cells = set(plan.cell_ids)  # neither tried here nor finished elsewhere
    damage_moved = False
    with Leases(run_root(experiment) / "leases") as leases:
        while open_cells and stop.received is None:
            open_cells = _lacking(plan, _look(plan, open_cells, progress))
            if open_cells and not damage_moved:  # rows of a damaged file count as missing
                plan.store.set_aside(plan.partitions)
                damage_moved = True
            mine, held = leases.claim(open_cells)
            if mine:
                # A driver that ended just now may have stored rows since they were looked for.
                missing = _only(plan, _look(plan, open_cells, progress), mine)
                progress.start()
                yield progress
                yield from work(missing, progress, leases)
                if not leases.lost:
                    open_cells -= mine
                leases.release()
            elif held:
                yield from _await(leases, held, open_cells, stop, progress)
        if stop.received is None:
            _tidy(plan, leases)
    progress.stopped_by, progress.actors, progress.note = stop.received, 0, ""
    yield progress


def assignment_of(experiment: Experiment, plan: GridPlan, provenance: Mapping[str, Any]) -> Assignment:
    """What the workers of this plan must know."""
    return Assignment(
        experiment,
        plan.methods,
        plan.cells_of,
        {benchmark: packed_samples(samples) for benchmark, samples in plan.samples.items()},
        plan.model_fingerprint,
        plan.checkpoint,
        dict(provenance),
        frozenset(plan.store.read(plan.partitions, "retention", columns=["sample_id"])["sample_id"].to_pylist()),
    )


def store_outcome(plan: GridPlan, unit: Unit, outcome: UnitOutcome, progress: Progress) -> None:
    """Store a finished unit and count its rows."""
    partition = plan.partition(unit.benchmark)
    if outcome.retention is not None:
        plan.store.append_encoded(outcome.retention, partition, "retention")
    plan.store.append_encoded(outcome.rows, partition)
    progress.add(outcome.digest)


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


def _await(
    leases: Leases, held: list[Lease], cells: set[str], stop: StopSignals, progress: Progress
) -> Iterator[Progress]:
    """Until one of the other drivers has let go of its cells, or a signal."""
    names = {lease.path for lease in held}
    who = "; ".join(f"{len(lease.cells & cells)} cells of {lease.owner} ({lease.path})" for lease in held)
    while stop.received is None and names <= {lease.path for lease in leases.others()}:
        progress.note = f"waiting for {who}. To take over, end that run, or delete its lease file if it hangs."
        yield progress
        time.sleep(WAIT_SECONDS)
    progress.note = ""
    yield progress


def _tidy(plan: GridPlan, leases: Leases) -> None:
    """Merge small files, unless another driver does."""
    for partition in plan.partitions:
        mine, _ = leases.claim({partition})
        if mine:
            plan.store.compact(partition, below=SMALL_PART, parts=MANY_PARTS)
    leases.release()
