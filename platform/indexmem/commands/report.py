"""`indexmem report`, and what else is made of a grid's stored rows: the table in the terminal, the runs in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash, run_root
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.evaluate.grid import GridPlan, plan
from indexmem.report.html import write_report
from indexmem.report.link import fragment
from indexmem.report.shelf import page_path, write_index
from indexmem.report.verdict import GridVerdict, verdict
from indexmem.results.costs import costs
from indexmem.results.gate import Gate, gated
from indexmem.results.summary import summarise
from indexmem.results.tables import comparison_table

if TYPE_CHECKING:
    from indexmem.tracking.mlflow_sink import MlflowSink

NOT_RANKED = 4  # exit code: all is evaluated, and the full cache is below grid.full_cache_floor


def report_spec(experiment: Experiment, *, images: bool = False) -> int:
    """Write the report, with `images` its charts as files too, and print the table from what is stored.

    NOT_RANKED when the full cache forbids a ranking.
    """
    grid = plan(experiment)
    rows = grid.rows()
    if not rows.num_rows:
        raise UserError("Nothing is stored for this spec yet. Run `python jobs/eval_grid.py SPEC` first.")
    path = write_grid_report(experiment, grid, rows, images=images)
    gate = print_scores(experiment, rows)
    print_report(path)
    return NOT_RANKED if gate.shortfalls else 0


def write_grid_report(
    experiment: Experiment,
    grid: GridPlan,
    rows: pa.Table,
    links: Mapping[str, str] = MappingProxyType({}),
    *,
    images: bool = False,
) -> Path:
    """Write the grid's report (`report_path`) from `rows`, with the training curve where the spec trained its modules.

    `links` (text -> address) lead to the run in MLflow and the Ray job, where there are any.
    Beside it, the folder <name>/ has the numbers as CSV and LaTeX and, with `images`, the charts as PNG and SVG.
    Below the spec's floor for the full cache, the report has the rows of the full cache alone, and says why.
    """
    gate = gated(rows, experiment.grid.full_cache_floor)
    retention = grid.store.read(grid.partitions, "retention", cell_ids=grid.cell_ids)
    history: list[dict[str, Any]] = []
    if grid.checkpoint is not None and not experiment.indexer.checkpoint:
        history = DistillRun.of(experiment).read_history()
    out = report_path(experiment, grid)
    write_report(
        *(experiment, gate.rows, retention, out, history),
        links=links,
        warning=gate.explanation,
        folder=out.with_suffix(""),
        images=images,
        of=_identity(grid),
    )
    write_index(out.parent)
    return out


def report_path(experiment: Experiment, grid: GridPlan) -> Path:
    """Where the grid's report is: <name>.html, or another name where that one is of a grid with other cells."""
    return page_path(run_root(experiment) / "reports", experiment.name, _identity(grid))


def _identity(grid: GridPlan) -> str:
    """Of which cells it is, whatever the number of their samples."""
    return content_hash(sorted(grid.cell_ids))


def print_scores(experiment: Experiment, rows: pa.Table) -> Gate:
    """Print the comparison; below the spec's floor for the full cache, its scores alone and what to check."""
    gate = gated(rows, experiment.grid.full_cache_floor)
    print(comparison_table(gate.rows))
    if gate.shortfalls:
        print(f"\n{gate.explanation}\n")
    return gate


def print_report(path: Path) -> None:
    """Where the report is, and the address at which it opens with the samples that the best method loses."""
    print(f"Samples: {path.absolute().as_uri()}{fragment('samples', order='losses')}\nReport: {path}")


def mirror_grid(sink: MlflowSink, experiment: Experiment, rows: pa.Table, report: Path) -> str | None:
    """Publish `rows`, with the report and its folder of numbers where they have been written.

    Below the spec's floor for the full cache, only the full cache is published. Returns the run's URL or id, None if
    MLflow did not answer.
    """
    gate = gated(rows, experiment.grid.full_cache_floor)
    return sink.publish_grid(
        experiment,
        gate.rows,
        artifacts={path.name: path for path in (report, report.with_suffix("")) if path.exists()},
        verdict=gate.explanation or verdict_text(verdict(summarise(gate.rows), costs(gate.rows))),
    )


def verdict_text(said: GridVerdict) -> str:
    """The verdict as Markdown: the outcome in bold, then the finding at each budget."""
    findings = [
        " ".join(filter(None, [f"- {found.budget.phrase}: **{found.title}.** {found.text}", found.cost, found.equal]))
        for found in said.findings
    ]
    trades = ["", said.trades] if said.trades else []
    samples = [fragment("samples", method=found.best, budget=str(found.budget)) for found in said.findings]
    told = ["", "Samples, behind the report's address:", "", *(f"- `{one}`" for one in samples)] if samples else []
    return "\n".join([f"**{said.headline}**", "", *findings, *trades, "", said.basis, *told])
