"""`indexmem report`: table and report from what is stored."""

from __future__ import annotations

from indexmem.commands.grid_results import NOT_RANKED, print_scores, write_grid_report
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan


def report_spec(experiment: Experiment, *, images: bool = False) -> int:
    """Write the report, with `images` its charts as files too, and print the table from what is stored.

    NOT_RANKED when the full cache forbids a ranking.
    """
    grid = plan(experiment)
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    if not rows.num_rows:
        raise UserError("Nothing is stored for this spec yet. Run `python jobs/eval_grid.py SPEC` first.")
    path = write_grid_report(experiment, grid, rows, images=images)
    gate = print_scores(experiment, rows)
    print(f"Report: {path}")
    return NOT_RANKED if gate.shortfalls else 0
