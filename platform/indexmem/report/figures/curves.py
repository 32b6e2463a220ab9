"""Score against budget: the mean over benchmarks, one benchmark, or anything else that has an interval per cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import plotly.graph_objects as go

from indexmem.config.budget import Budget, Kind
from indexmem.report.figures.base import MAX_DIRECT_LABELS, frame, label_ends, line, mark_full
from indexmem.report.palette import style
from indexmem.report.text import counted
from indexmem.results.intervals import Interval
from indexmem.results.summary import MEAN, Summary

AXES: Mapping[Kind, str] = MappingProxyType(
    {"ratio": "KV cache evicted", "tokens": "tokens kept per KV head", "bytes": "bytes of all that is kept"}
)
EVEN_GAP = 0.2  # between budgets that are not drawn to scale
LABEL_GAP = 5.0  # points of score between two labels at the right edge


def score_curve(summary: Summary, benchmark: str = MEAN, kind: Kind = "ratio") -> go.Figure:
    """Score against the budgets of one kind, smaller ones to the right.

    A line with 95% whiskers per method, the full cache as a dashed line.
    """
    cells = {(m, b): cell for (m, b, name), cell in summary.cells.items() if name == benchmark}
    figure = curve(benchmark_title(summary, benchmark), cells, summary.methods, summary.by_kind.get(kind, ()), kind)
    mark_full(figure, summary.full(benchmark))
    return figure


def benchmark_title(summary: Summary, benchmark: str) -> str:
    """'niah_single_1', 'Mean over 13 benchmarks'; of a single benchmark the mean is its score."""
    if benchmark != MEAN:
        return benchmark
    one = len(summary.benchmarks) == 1
    return summary.benchmarks[0] if one else f"Mean over {counted(len(summary.benchmarks), 'benchmark')}"


def curve(
    title: str,
    cells: Mapping[tuple[str, Budget], Interval],
    methods: Sequence[str],
    budgets: Sequence[Budget],
    kind: Kind,
) -> go.Figure:
    """Lines through `cells`, one per method that has any; names stand beside the lines where there is room."""
    figure = frame(title, AXES[kind], "score, %")
    x_of = _positions(budgets)
    shown = [m for m in methods if any((m, budget) in cells for budget in x_of)]
    step = _dodge(list(x_of.values()), len(shown))
    for number, method in enumerate(shown):
        mine = [budget for budget in x_of if (method, budget) in cells]
        # Whiskers of many methods at one budget would lie on top of each other.
        shift = (number - (len(shown) - 1) / 2) * step
        x = [x_of[budget] + shift for budget in mine]
        figure.add_trace(
            line(method, style(method), x, [cells[method, b] for b in mine], [budget.phrase for budget in mine])
        )
    low, high = (min(x_of.values()), max(x_of.values())) if x_of else (0.0, 1.0)
    labels = [str(budget) for budget in x_of]
    figure.update_xaxes(tickvals=list(x_of.values()), ticktext=labels, range=[low - 0.04, high + 0.04])
    if len(shown) <= MAX_DIRECT_LABELS:
        label_ends(figure, high + 0.03, LABEL_GAP, floor=0.0)
    return figure


def _positions(budgets: Sequence[Budget]) -> dict[Budget, float]:
    """Where budgets of one kind stand on the axis: shares to scale; tokens and bytes, which span magnitudes, evenly."""
    return {b: number * EVEN_GAP if b.ratio is None else b.ratio for number, b in enumerate(budgets)}


def _dodge(x_of: Sequence[float], methods: int) -> float:
    """Horizontal step between methods: small against the closest pair of budgets."""
    gap = float(np.diff(sorted(x_of)).min()) if len(x_of) > 1 else 0.1
    return min(0.006, 0.4 * gap / max(methods, 1))
