"""`indexmem table`: stored scores of several runs of a spec side by side, for example as a paper prints them."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence

from indexmem.config.load import load
from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.config.table import TableSpec
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.fetching import noted, nothing_fetched
from indexmem.files import write_whole
from indexmem.progress.view import say
from indexmem.report.latex import joined_table
from indexmem.results.gate import gated
from indexmem.results.side_by_side import SideBySide, markdown_table, table_lines
from indexmem.results.summary import Summary, summarise

FIELDS = ("model", "method", "column", "budget", "mean", "low", "high", "standing")


def table_spec(spec: TableSpec, overrides: Sequence[str] = ()) -> int:
    """Print the table as Markdown, write it as LaTeX and CSV, and say which runs are missing and how to start them.

    1 while rows are missing. `overrides` are of every run. Raises UserError for a method that a run does not compare.
    """
    summaries: dict[str, dict[str, Summary | None]] = {}
    missing: list[str] = []
    experiment = None
    for rows in spec.rows:
        summaries[rows.title] = {}
        for column in spec.columns:
            settings = [*rows.overrides, *column.overrides, *overrides]
            experiment = load(spec.spec, settings)
            known = {method.label for method in experiment.grid.methods}
            if unknown := set(rows.methods.values()) - known:
                raise UserError(f"rows '{rows.title}': {min(unknown)} is not among the methods of {spec.spec}.")
            summaries[rows.title][column.title], done = _summary(experiment)
            if not done:
                missing.append(shlex.join(["indexmem", "run", spec.spec, *settings]))
    assert experiment is not None, "a table has rows and columns"
    table = SideBySide(
        spec.title or spec.name,
        tuple(rows.title for rows in spec.rows),
        tuple(column.title for column in spec.columns),
        spec.budgets,
        {rows.title: rows.methods for rows in spec.rows},
        summaries,
    )
    folder = run_root(experiment) / "reports" / spec.name
    print(markdown_table(table))
    if any(summary for row in summaries.values() for summary in row.values()):
        write_whole(folder / "table.tex", joined_table(table))
        write_whole(folder / "table.csv", _csv(table))
        print(f"Table: {folder / 'table.tex'}, table.csv")
    for command in missing:
        say(f"rows are missing: {command}")
    return int(bool(missing))


def _summary(experiment: Experiment) -> tuple[Summary | None, bool]:
    """What is stored of a run, and whether that is all of it. A model that is not here has no rows here."""
    with nothing_fetched():
        grid = None
        with noted([]):
            grid = plan(experiment, require_checkpoint=False)
        if grid is None or grid.outline:
            return None, False
        rows = grid.rows()
        done = not any(missing_SC.any() for missing_SC in grid.missing().values())
    return (summarise(gated(rows, experiment.grid.full_cache_floor).rows) if rows.num_rows else None), done


def _csv(table: SideBySide) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows(table_lines(table))
    return buffer.getvalue()
