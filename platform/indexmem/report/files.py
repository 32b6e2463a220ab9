"""The folder beside a report: its numbers as CSV, its tables as LaTeX and, if wanted, its charts as PNG and SVG."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from indexmem.report.content import Content, View
from indexmem.report.images import write_images
from indexmem.report.latex import benchmarks_table, budgets_table
from indexmem.report.panels import all_panels
from indexmem.results.costs import Cost
from indexmem.results.summary import Summary
from indexmem.results.tables import score_frame

FACETS = ["model", "method", "budget", "label", "value", "mean", "low", "high", "n"]
ANSWERS = ["model", "measure", "method", "budget", "mean", "low", "high", "n"]
ABLATIONS = ["model", "variant", "baseline", "budget", "difference", "low", "high", "n", "p_adjusted"]


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
    """`results.tables.score_frame` as CSV; `ratio` is empty where the budget is not a share."""
    frame = score_frame(summaries)
    ratios = frame["ratio"].map(lambda ratio: "" if pd.isna(ratio) else f"{ratio:g}")
    return frame.assign(ratio=ratios).to_csv(index=False, float_format="%.6f", lineterminator="\n")


def costs_csv(views: Sequence[View]) -> str:
    """One line per (model, method, budget): the means that `Cost` describes, in tokens, bytes and seconds."""
    names = [field.name for field in fields(Cost)]
    lines = [(view.model, *(getattr(cost, name) for name in names)) for view in views for cost in view.costs]
    return pd.DataFrame(lines, columns=["model", *names], dtype=object).to_csv(index=False, lineterminator="\n")


def answers_csv(views: Sequence[View]) -> str:
    """One line per (model, measure, method, budget): tokens of an answer, difference from the full cache's, pass@k."""
    lines = [
        (view.model, measure, method, budget, *map(_six, (found.mean, found.low, found.high)), found.n)
        for view in views
        for measure, measured in view.answers.measures.items()
        for (method, budget), found in measured.items()
    ]
    return pd.DataFrame(lines, columns=ANSWERS, dtype=object).to_csv(index=False, lineterminator="\n")


def ablations_csv(views: Sequence[View]) -> str:
    """One line per (model, variant, budget): variant - baseline in [-1, 1] with its interval and adjusted p."""
    lines = [
        (view.model, variant, ablation.baseline, ablation.budget, *map(_six, (d.mean, d.low, d.high)), d.n, d.p_value)
        for view in views
        for ablation in view.ablations
        for variant, d in ablation.variants.items()
    ]
    return pd.DataFrame(lines, columns=ABLATIONS, dtype=object).to_csv(index=False, lineterminator="\n")


def facets_csv(views: Sequence[View]) -> str:
    """One line per (model, method, budget, label, value): mean in [0, 1] with its interval and independent samples."""
    lines = [
        (view.model, method, budget, facet.name, value, *map(_six, (cell.mean, cell.low, cell.high)), cell.n)
        for view in views
        for facet in view.facets
        for value in facet.values
        for (method, budget, of), cell in sorted(facet.cells.items(), key=lambda cell: cell[0][:2])
        if of == value
    ]
    return pd.DataFrame(lines, columns=FACETS, dtype=object).to_csv(index=False, lineterminator="\n")


def _texts(content: Content) -> dict[str, str]:
    views, length = content.views, content.experiment.grid.length
    summaries = {view.model: view.summary for view in views}
    texts = {
        "scores.csv": scores_csv(summaries),
        "costs.csv": costs_csv(views),
        "scores.tex": budgets_table(views, length),
    }
    if any(view.facets for view in views):
        texts["facets.csv"] = facets_csv(views)
    if any(view.answers.measures for view in views):
        texts["answers.csv"] = answers_csv(views)
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


def _six(value: float) -> str:
    return f"{value:.6f}"
