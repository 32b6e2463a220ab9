"""A trial's quick evaluation: the spec's grid in one process, through the same cells and into the same store as all.

Cells that other trials, or a grid, have evaluated or are about to are not evaluated again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.fanout import assignment_of
from indexmem.evaluate.grid import GridPlan, plan
from indexmem.evaluate.units import Backlog
from indexmem.evaluate.worker import Worker
from indexmem.lease import Leases
from indexmem.models.backbone import Backbone
from indexmem.results.schema import OK

WAIT_SECONDS = 1.0  # between looks at cells that somebody else evaluates


def evaluate_here(
    experiment: Experiment, backbone: Backbone, provenance: Mapping[str, Any]
) -> tuple[pa.Table, tuple[str, ...]]:
    """All rows of the spec's grid, and the ids of its cells. Raises RuntimeError when some rows failed."""
    grid = plan(experiment)
    tried: frozenset[str] = frozenset()  # a failed row is not tried twice
    with Leases(run_root(experiment) / "leases") as leases:
        while open_cells := _lacking(grid) - tried:
            mine, _ = leases.claim(open_cells)
            if mine and _evaluate(experiment, grid, mine, backbone, provenance, leases):
                tried |= mine
            leases.release()
            if not mine:
                time.sleep(WAIT_SECONDS)
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    failed = rows.filter(pc.not_equal(rows["status"], OK))
    if failed.num_rows:
        reason = f"{failed['error_class'][0].as_py()}: {failed['error_message'][0].as_py()}"
        raise RuntimeError(f"{failed.num_rows} of {rows.num_rows} rows failed, the first with {reason}")
    return rows, grid.cell_ids


def _evaluate(
    experiment: Experiment,
    grid: GridPlan,
    cells: frozenset[str],
    backbone: Backbone,
    provenance: Mapping[str, Any],
    leases: Leases,
) -> bool:
    """Store what these cells lack, unit by unit; False when somebody else took them over meanwhile."""
    missing = {
        benchmark: missing_SC & [cell.id in cells for cell in grid.cells_of[benchmark]]
        for benchmark, missing_SC in grid.missing().items()  # looked up again: another holder may just have ended
    }
    evaluator = CellEvaluator.load(experiment, grid.methods, grid.checkpoint, provenance, backbone)
    worker = Worker(assignment_of(experiment, grid, provenance), evaluator)
    backlog = Backlog(missing)
    while backlog.rows:
        unit = backlog.take(experiment.grid.unit_samples, backlog.rows)
        outcome = worker.run(unit)
        if leases.lost:  # this process stood still; who took the cells over does this unit, too
            return False
        partition = grid.partition(unit.benchmark)
        if outcome.retention is not None:
            grid.store.append_encoded(outcome.retention, partition, "retention")
        grid.store.append_encoded(outcome.rows, partition)
    return True


def _lacking(grid: GridPlan) -> frozenset[str]:
    """Ids of the cells with missing rows."""
    return frozenset(
        cell.id
        for benchmark, missing_SC in grid.missing().items()
        for cell, missing_S in zip(grid.cells_of[benchmark], missing_SC.T)
        if missing_S.any()
    )
