"""`indexmem report`: table and report from what is stored."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.report.tables import comparison_table
from indexmem.workflows.grid_report import write_grid_report


def report(experiment: Experiment) -> int:
    """Write the report and print the table from what is stored."""
    grid = plan(experiment)
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    if not rows.num_rows:
        raise UserError("Nothing is stored for this spec yet. Run `python jobs/eval_grid.py SPEC` first.")
    path = write_grid_report(experiment, grid, rows)
    print(comparison_table(rows))
    print(f"Report: {path}")
    return 0
