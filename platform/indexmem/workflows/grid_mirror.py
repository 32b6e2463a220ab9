"""A grid's stored rows in MLflow, told as in the report."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.report.costs import costs
from indexmem.report.figures import score_by_bytes, score_curve
from indexmem.report.verdict import Verdict, verdict
from indexmem.results.gate import gated
from indexmem.results.summary import MEAN, summarise
from indexmem.tracking.mlflow_sink import MlflowSink


def mirror_grid(sink: MlflowSink, experiment: Experiment, rows: pa.Table, report: Path) -> str | None:
    """Publish `rows`, with the report where it has been written; the run's URL or id, None if MLflow did not answer.

    Below the spec's floor for the full cache, only the full cache is published.
    """
    gate = gated(rows, experiment.grid.full_cache_floor)
    rows = gate.rows
    summary = summarise(rows)
    figures = {f"Score by {kind}": score_curve(summary, MEAN, kind) for kind in summary.by_kind}
    figures["Score by bytes held"] = score_by_bytes(summary, costs(rows))
    return sink.publish_grid(
        experiment,
        rows,
        artifacts={report.name: report} if report.is_file() else {},
        verdict=gate.explanation or verdict_text(verdict(summary)),
        figures=figures,
    )


def verdict_text(said: Verdict) -> str:
    """The verdict as Markdown: the outcome in bold, then what is behind it at each budget."""
    findings = [f"- {finding.budget.phrase}: **{finding.title}.** {finding.text}" for finding in said.findings]
    return "\n".join([f"**{said.headline}**", "", *findings, "", said.basis])
