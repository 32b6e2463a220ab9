"""Runs with a budget while decoding: score, answers cut at their limit, and tokens that heads really held."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from indexmem.config.budget import Budget, Kind
from indexmem.report.costs import Cost
from indexmem.report.figures.base import frame, plain_line
from indexmem.report.figures.curves import AXES
from indexmem.report.palette import styles
from indexmem.results.summary import FULL


def truncation(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Share of answers that hit their limit of tokens, by budget."""
    figure = frame("Answers cut at their limit", AXES[kind], "cut answers, %")
    look = styles(methods)
    places = _places(costs, kind)
    for method in methods:
        mine = [c for c in costs if c.method == method and c.budget in places and c.truncated is not None]
        y = [100 * cost.truncated for cost in mine if cost.truncated is not None]
        hover = [f"<b>{method}</b><br>{c.budget.phrase}<br>{share:.0f}% cut" for c, share in zip(mine, y)]
        figure.add_trace(plain_line(method, look[method], [places[c.budget] for c in mine], y, hover))
    return figure.update_xaxes(tickvals=list(places.values()), ticktext=list(map(str, places)))


def kept_while_decoding(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Tokens that a head held while decoding: the mean as a line, the most as a whisker above it, by budget."""
    figure = frame("Tokens held while decoding", AXES[kind], "tokens a head", y_range=None)
    look = styles(methods)
    places = _places(costs, kind)
    for method in methods:
        mine = [c for c in costs if c.method == method and c.budget in places and c.decode_kept_mean is not None]
        means = [cost.decode_kept_mean or 0.0 for cost in mine]
        above = [max(0.0, (cost.decode_kept_max or 0) - mean) for cost, mean in zip(mine, means)]
        hover = [
            f"<b>{method}</b><br>{cost.budget.phrase}<br>{mean:,.0f} tokens, at most {mean + more:,.0f}"
            for cost, mean, more in zip(mine, means, above)
        ]
        whisker = {"type": "data", "symmetric": False, "array": above, "arrayminus": [0.0] * len(mine), "width": 3}
        x = [places[cost.budget] for cost in mine]
        figure.add_trace(plain_line(method, look[method], x, means, hover).update(error_y=whisker))
    figure.update_xaxes(tickvals=list(places.values()), ticktext=list(map(str, places)))
    return figure.update_yaxes(rangemode="tozero")


def _places(costs: Sequence[Cost], kind: Kind) -> dict[Budget, int]:
    budgets = sorted({cost.budget for cost in costs if cost.method != FULL and cost.budget.kind == kind})
    return {budget: number for number, budget in enumerate(budgets)}
