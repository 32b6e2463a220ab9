"""What a score costs: score against bytes and against time, with the best trades marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from indexmem.report.figures.base import TEXT, frame, line, mark_full
from indexmem.report.palette import style
from indexmem.results.costs import Cost
from indexmem.results.pareto import pareto_front
from indexmem.results.schema import FULL_LABEL
from indexmem.results.summary import MEAN, Summary

Spent = Callable[[Cost], float]


def score_by_bytes(summary: Summary, costs: Sequence[Cost]) -> go.Figure:
    """Mean score against every byte that decoding needs (KV, indexer keys, memory), as a share of the full cache."""
    title, x_title = "Score for memory", "measured cache bytes, % of the full cache"
    figure = _tradeoff(summary, costs, title, x_title, lambda cost: 100 * cost.cache_share, "{:.1f}% of the bytes")
    return figure.update_xaxes(ticksuffix="%")


def score_by_time(summary: Summary, costs: Sequence[Cost]) -> go.Figure:
    """Mean score against milliseconds that the method takes to score a context, without the prefill that all share."""
    title, x_title = "Score for time", "scoring a context, ms"
    return _tradeoff(summary, costs, title, x_title, lambda cost: 1000 * cost.score_seconds, "{:.0f} ms")


def _tradeoff(summary: Summary, costs: Sequence[Cost], title: str, x_title: str, spent: Spent, unit: str) -> go.Figure:
    """A line per method, and a frame around each point that no other one beats in both score and cost."""
    figure = frame(title, x_title, "mean score, %")
    scored = [c for c in costs if c.method != FULL_LABEL and (c.method, c.budget, MEAN) in summary.cells]
    for method in summary.methods:
        mine = sorted((c for c in scored if c.method == method), key=spent)
        cells = [summary.cells[method, cost.budget, MEAN] for cost in mine]
        hover = [f"{unit.format(spent(cost))} ({cost.budget.phrase})" for cost in mine]
        figure.add_trace(line(method, style(method), [spent(cost) for cost in mine], cells, hover))
    points = [(spent(cost), -summary.cells[cost.method, cost.budget, MEAN].mean) for cost in scored]
    front = [points[index] for index in pareto_front(points)]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in front],
            y=[-100 * y for _, y in front],
            mode="lines+markers",
            line={"shape": "hv", "color": TEXT, "width": 1, "dash": "dot"},
            marker={"symbol": "circle-open", "size": 17, "line": {"width": 1.5}, "color": TEXT},
            name="best trades",
            hoverinfo="skip",
        )
    )
    mark_full(figure, summary.full(MEAN))
    return figure.update_xaxes(rangemode="tozero")
