"""The report of a grid's stored rows, as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.runs import DistillRun
from indexmem.evaluate.grid import GridPlan
from indexmem.report.html import write_report
from indexmem.results.gate import gated
from indexmem.results.sweeps import read_sweeps
from indexmem.workflows.training import read_history


def write_grid_report(
    experiment: Experiment,
    grid: GridPlan,
    rows: pa.Table,
    links: Mapping[str, str] = MappingProxyType({}),
    *,
    images: bool = False,
) -> Path:
    """Write <run root>/reports/<name>.html from `rows`, with the training curve where the spec trained its modules.

    `links` (text -> address) lead to the run in MLflow and the Ray job, where there are any.
    Beside it, the folder <name>/ has the numbers as CSV and LaTeX and, with `images`, the charts as PNG and SVG.
    Below the spec's floor for the full cache, the report has the rows of the full cache alone, and says why.
    """
    gate = gated(rows, experiment.grid.full_cache_floor)
    retention = grid.store.read(grid.partitions, "retention", cell_ids=grid.cell_ids)
    history: list[dict[str, Any]] = []
    if grid.checkpoint is not None and not experiment.indexer.checkpoint:
        history = read_history(experiment, DistillRun.of(experiment))
    out = report_path(experiment)
    return write_report(
        *(experiment, gate.rows, retention, out, history),
        links=links,
        warning=gate.explanation,
        sweeps=read_sweeps(run_root(experiment), experiment.name),
        folder=out.with_suffix(""),
        images=images,
    )


def report_path(experiment: Experiment) -> Path:
    """Where the report of a spec is written."""
    return run_root(experiment) / "reports" / f"{experiment.name}.html"
