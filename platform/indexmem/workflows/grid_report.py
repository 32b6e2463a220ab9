"""The report of a grid's stored rows, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.runs import DistillRun
from indexmem.evaluate.grid import GridPlan
from indexmem.report.html import write_report
from indexmem.workflows.training import read_history


def write_grid_report(experiment: Experiment, grid: GridPlan, rows: pa.Table) -> Path:
    """Write <run root>/reports/<name>.html from `rows`, with the training curve where the spec trained its modules."""
    retention = grid.store.read(grid.partitions, "retention", cell_ids=grid.cell_ids)
    history: list[dict[str, Any]] = []
    if grid.checkpoint is not None and not experiment.indexer.checkpoint:
        history = read_history(experiment, DistillRun.of(experiment))
    return write_report(
        experiment, rows, retention, run_root(experiment) / "reports" / f"{experiment.name}.html", history
    )
