"""Scores by the values of a label: a panel of dots with whiskers, one row of values per method."""

from __future__ import annotations

import plotly.graph_objects as go

from indexmem.config.budget import Budget
from indexmem.report.facets import Facet
from indexmem.report.figures.base import frame, line
from indexmem.report.palette import styles


def facet_chart(facet: Facet, budget: Budget, methods: tuple[str, ...]) -> go.Figure:
    """Score by the label's values at one budget, methods side by side."""
    figure = frame(f"{facet.title}, {budget.phrase}", facet.name, "score, %")
    look = styles(methods)
    step = 0.6 / max(1, len(methods))
    for number, method in enumerate(methods):
        places = [i for i, value in enumerate(facet.values) if (method, budget, value) in facet.cells]
        cells = [facet.cells[method, budget, facet.values[i]] for i in places]
        x = [i + (number - (len(methods) - 1) / 2) * step for i in places]
        hover = [f"{facet.name} {facet.values[i]}" for i in places]
        figure.add_trace(line(method, look[method], x, cells, hover).update(mode="markers"))
    ticks = list(range(len(facet.values)))
    figure.update_xaxes(tickvals=ticks, ticktext=list(map(str, facet.values)), range=[-0.5, len(ticks) - 0.5])
    return figure
