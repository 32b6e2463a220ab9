"""What all figures share: the frame, a method's line with whiskers, the full cache's level, labels at line ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from indexmem.report.palette import FULL_COLOR, Style
from indexmem.results.intervals import Interval

GRID = "rgba(128,128,128,0.22)"
TEXT = "#6b7280"
PERCENT_RANGE = (-3, 104)
MAX_DIRECT_LABELS = 12
LEVEL = "level"  # name of the note at the full cache's line


def frame(title: str, x_title: str, y_title: str, *, y_range: tuple[float, float] | None = PERCENT_RANGE) -> go.Figure:
    """An empty figure with axes that neither zoom nor pan: a page is scrolled over them."""
    layout: dict[str, Any] = {
        "template": "none",
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 15}},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": TEXT},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 56, "r": 14, "t": 40, "b": 50},
        "hovermode": "closest",
        "dragmode": False,
        "showlegend": False,
        "xaxis": axis(x_title),
        "yaxis": axis(y_title) | ({"range": y_range} if y_range else {}),
    }
    return go.Figure(layout=layout)


def axis(title: str = "") -> dict[str, Any]:
    """One axis; for those beyond the frame's first two as well."""
    heading = {"text": title, "font": {"size": 12}, "standoff": 8}
    return {"title": heading, "gridcolor": GRID, "zeroline": False, "fixedrange": True, "automargin": True}


def line(method: str, style: Style, x: Sequence[float], cells: Sequence[Interval], hover: Sequence[str]) -> go.Scatter:
    """A method's scores as a line with 95% whiskers; hover: where each point stands, in words."""
    texts = [
        f"<b>{method}</b><br>{where}<br>{100 * c.mean:.1f}%  [{100 * c.low:.1f}, {100 * c.high:.1f}], n = {c.n}"
        for where, c in zip(hover, cells)
    ]
    whiskers = {
        "type": "data",
        "symmetric": False,
        "array": [100 * (c.high - c.mean) for c in cells],
        "arrayminus": [100 * (c.mean - c.low) for c in cells],
        "width": 0,
        "thickness": 1.5,
        "color": style.faded(0.75 if style.emphasised else 0.4),
    }
    drawn = plain_line(method, style, x, [100 * c.mean for c in cells], texts)
    return drawn.update(error_y=whiskers)


def plain_line(method: str, style: Style, x: Sequence[float], y: Sequence[float], hover: Sequence[str]) -> go.Scatter:
    """A method's line in its own colour, marker and dash; hover: the whole text of each point."""
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=method,
        legendgroup=method,
        mode="lines+markers",
        line={"color": style.color, "width": style.width, "dash": style.dash},
        marker={"color": style.color, "symbol": style.marker, "size": 9 if style.emphasised else 7},
        hovertext=list(hover),
        hovertemplate="%{hovertext}<extra></extra>",
    )


def mark_full(figure: go.Figure, full: Interval | None) -> None:
    """The full cache's mean as a dashed level over its interval."""
    if full is None:
        return
    band = {"fillcolor": FULL_COLOR, "opacity": 0.13, "line_width": 0, "layer": "below"}
    figure.add_hrect(y0=100 * full.low, y1=100 * full.high, **band)
    figure.add_hline(y=100 * full.mean, line={"dash": "dash", "width": 1.5, "color": FULL_COLOR}, layer="below")
    note = {"text": f"full cache {100 * full.mean:.1f}%", "font": {"size": 11}, "showarrow": False, "name": LEVEL}
    figure.add_annotation(x=1, xref="paper", xanchor="right", y=100 * full.mean, yanchor="bottom", **note)


def label_ends(figure: go.Figure, x: float, gap: float, floor: float) -> None:
    """Method names beside the right ends of their lines, `gap` apart and none below `floor`.

    They are traces of text, so that they hide with their line.
    """
    lines = sorted((trace for trace in figure.data if len(trace.y)), key=lambda trace: trace.y[-1])
    for trace, y in zip(lines, spread([trace.y[-1] for trace in lines], gap, floor)):
        figure.add_trace(
            go.Scatter(
                x=[x],
                y=[y],
                text=[trace.name],
                mode="text",
                textposition="middle right",
                textfont={"color": trace.line.color, "size": 12},
                legendgroup=trace.legendgroup,
                showlegend=False,
                hoverinfo="skip",
                cliponaxis=False,
            )
        )
    figure.update_layout(margin_r=16 + 7 * max((len(trace.name) for trace in lines), default=0))


def spread(values: Sequence[float], gap: float, floor: float = -math.inf) -> list[float]:
    """Ascending values moved apart to at least `gap`, as little as possible in the sum of squares, then above `floor`.

    With i * gap taken off the i-th value this is isotonic regression: pool neighbours until their means ascend.
    """
    pools: list[tuple[float, int]] = []  # mean, members
    for number, value in enumerate(values):
        mean, members = value - number * gap, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, members = (before * count + mean * members) / (count + members), count + members
        pools.append((mean, members))
    means = [mean for mean, members in pools for _ in range(members)]
    return [max(mean, floor) + number * gap for number, mean in enumerate(means)]
