"""Scores by what samples are labelled with: a chart of a label's values, and heat maps of needles."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from indexmem.config.budget import Budget
from indexmem.report.facets import Facet, HeatMap
from indexmem.report.figures.base import frame, line
from indexmem.report.palette import style
from indexmem.results.schema import FULL_LABEL

PANELS_A_ROW = 3
PANEL_PIXELS = 230
SCALE = "Viridis"  # even in lightness, so it survives grey print and colour blindness
COLOR_BAR = {"title": {"text": "score, %", "font": {"size": 12}}, "thickness": 12, "outlinewidth": 0}


def facet_chart(facet: Facet, budget: Budget, methods: tuple[str, ...]) -> go.Figure:
    """Score by the label's values at one budget: dots with whiskers, methods side by side."""
    figure = frame(f"{facet.title}, {budget.phrase}", facet.name, "score, %")
    step = 0.6 / max(1, len(methods))
    for number, method in enumerate(methods):
        indices = [i for i, value in enumerate(facet.values) if (method, budget, value) in facet.cells]
        cells = [facet.cells[method, budget, facet.values[i]] for i in indices]
        x = [i + (number - (len(methods) - 1) / 2) * step for i in indices]
        hover = [f"{facet.name} {facet.values[i]}" for i in indices]
        figure.add_trace(line(method, style(method), x, cells, hover).update(mode="markers"))
    ticks = list(range(len(facet.values)))
    figure.update_xaxes(tickvals=ticks, ticktext=list(map(str, facet.values)), range=[-0.5, len(ticks) - 0.5])
    return figure


def heat_map(found: HeatMap, methods: tuple[str, ...]) -> go.Figure:
    """Length by depth, a panel per method, one colour scale for all.

    Panels are in the order of `methods`, the full cache first where it was evaluated; titles carry the mean score.
    """
    shown = [m for m in (FULL_LABEL, *methods) if m in found.scores]
    columns = min(PANELS_A_ROW, len(shown))
    rows = -(-len(shown) // columns)
    titles = [f"{'full cache' if m == FULL_LABEL else m}  {100 * np.nanmean(found.scores[m]):.0f}%" for m in shown]
    figure = make_subplots(
        rows, columns, subplot_titles=titles, shared_xaxes="all", shared_yaxes="all",
        horizontal_spacing=0.04, vertical_spacing=0.32 / max(rows, 1) / 1.5,
    )  # fmt: skip
    depths = [f"{depth:g}%" for depth in found.depths]
    lengths = [f"{length:,}" for length in found.lengths]
    for number, method in enumerate(shown):
        grid = 100 * found.scores[method]
        figure.add_trace(
            go.Heatmap(
                x=lengths,
                y=depths,
                z=[[None if np.isnan(value) else round(float(value), 1) for value in row] for row in grid],
                coloraxis="coloraxis",
                name=method,
                xgap=1,
                ygap=1,
                hovertemplate=f"<b>{method}</b><br>%{{x}} tokens, depth %{{y}}<br>%{{z:.0f}}%<extra></extra>",
            ),
            number // columns + 1,
            number % columns + 1,
        )
    look = frame(f"{found.benchmark}, {found.budget.phrase}", "", "").layout
    figure.update_layout(
        {name: look[name] for name in ("template", "title", "font", "paper_bgcolor", "plot_bgcolor", "dragmode")}
    )
    figure.update_layout(
        height=PANEL_PIXELS * rows + 70,
        margin={"l": 60, "r": 10, "t": 62, "b": 56},
        coloraxis={"colorscale": SCALE, "cmin": 0, "cmax": 100, "colorbar": COLOR_BAR},
    )
    figure.update_annotations(font_size=13)
    figure.update_xaxes(type="category", ticks="", fixedrange=True, showgrid=False, zeroline=False)
    figure.update_yaxes(type="category", autorange="reversed", fixedrange=True, showgrid=False, zeroline=False)
    figure.update_xaxes(title={"text": "context, tokens", "font": {"size": 12}}, row=rows)
    return figure.update_yaxes(title={"text": "needle's depth", "font": {"size": 12}}, col=1)
