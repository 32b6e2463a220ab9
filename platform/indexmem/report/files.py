"""The folder beside a report: its numbers as CSV, its tables as LaTeX and, if wanted, its charts as PNG and SVG."""

from __future__ import annotations

import csv
import io
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from indexmem.config.budget import Budget
from indexmem.report.content import Content, View
from indexmem.report.costs import Cost
from indexmem.report.images import write_images
from indexmem.report.latex import benchmarks_table, budgets_table
from indexmem.report.panels import all_panels
from indexmem.results.summary import MEAN, Summary

SCORES = ("model", "method", "budget", "ratio", "benchmark", "mean", "low", "high", "n", "standing")
ABLATIONS = ("model", "variant", "baseline", "budget", "difference", "low", "high", "n", "p_adjusted")


def write_files(content: Content, folder: Path, *, images: bool = False) -> Path:
    """Write the folder, replacing what an earlier report left there as a whole, and return it.

    Raises UserError when `images` are wanted and there is no browser to draw them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        for name, text in _texts(content).items():
            (draft / name).write_text(text, encoding="utf-8")
        if images:
            write_images(_figures(content), draft / "figures")
        draft.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def scores_csv(summaries: Mapping[str, Summary]) -> str:
    """One line per (model, method, budget, benchmark or 'mean'): mean, low, high in [0, 1], n, standing in its column.

    `ratio` is the budget as a number, empty where it is not a share; `n` counts independent samples, or groups of
    them. A method that lacks too many samples to be ranked has the standing 'unranked' and no numbers.
    """
    return _csv(SCORES, (line for model, summary in summaries.items() for line in _scores(model, summary)))


def costs_csv(views: Sequence[View]) -> str:
    """One line per (model, method, budget): the means that `Cost` describes, in tokens, bytes and seconds."""
    names = [field.name for field in fields(Cost)]
    lines = ([view.model, *(getattr(cost, name) for name in names)] for view in views for cost in view.costs)
    return _csv(("model", *names), lines)


def ablations_csv(views: Sequence[View]) -> str:
    """One line per (model, variant, budget): variant - baseline in [-1, 1] with its interval and adjusted p."""
    lines = (
        [view.model, variant, ablation.baseline, ablation.budget, *_numbers(d.mean, d.low, d.high), d.n, d.p_value]
        for view in views
        for ablation in view.ablations
        for variant, d in ablation.variants.items()
    )
    return _csv(ABLATIONS, lines)


def _texts(content: Content) -> dict[str, str]:
    views, length = content.views, content.experiment.grid.length
    summaries = {view.model: view.summary for view in views}
    texts = {
        "scores.csv": scores_csv(summaries),
        "costs.csv": costs_csv(views),
        "scores.tex": budgets_table(views, length),
    }
    if any(view.ablations for view in views):
        texts["ablations.csv"] = ablations_csv(views)
    for view in views:
        for budget in view.summary.budgets:
            texts[f"{_file_name(f'benchmarks-{view.model}-{budget}')}.tex"] = benchmarks_table(view, budget)
    return texts


def _figures(content: Content) -> dict[str, go.Figure]:
    figures = {
        _file_name(f"{view.model}-{panel.id}"): panel.figure
        for view in content.views
        for panel in all_panels(view.sections)
    }
    return figures | {_file_name(panel.id): panel.figure for panel in all_panels(content.common)}


def _file_name(text: str) -> str:
    """'Qwen/Qwen3-8B-90%' -> 'Qwen-Qwen3-8B-90'."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")


def _scores(model: str, summary: Summary) -> Iterable[list[Any]]:
    for (method, budget, benchmark), cell in summary.listed.items():
        limits = _numbers(cell.mean, cell.low, cell.high)
        names = [model, method, str(budget), _ratio(budget), benchmark]
        yield [*names, *limits, cell.n, summary.standing(method, budget, benchmark)]
    column = {name: index for index, name in enumerate((MEAN, *summary.benchmarks))}
    for budget, benchmark in sorted(summary.contests, key=lambda index: (index[0], column[index[1]])):
        for method in summary.contests[budget, benchmark].lacking:
            yield [model, method, str(budget), _ratio(budget), benchmark, "", "", "", "", "unranked"]


def _ratio(budget: Budget) -> str:
    return "" if budget.ratio is None else f"{budget.ratio:g}"


def _numbers(*values: float) -> list[str]:
    return [f"{value:.6f}" for value in values]


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return buffer.getvalue()
