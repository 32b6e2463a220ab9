"""Plotly figures: score against budget, score against bytes, and the distillation loss.

Backgrounds are transparent and lines mid-toned, so that one figure serves a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import plotly.graph_objects as go

from indexmem.config.budget import Budget, Kind
from indexmem.report.costs import Cost
from indexmem.report.palette import FULL_COLOR, Style, styles
from indexmem.report.summary import MEAN, Summary
from indexmem.results.stats import Interval

GRID = "rgba(128,128,128,0.22)"
AXES: Mapping[Kind, str] = MappingProxyType(
    {"ratio": "KV cache evicted", "tokens": "tokens kept per KV head", "bytes": "bytes of all that is kept"}
)
EVEN_GAP = 0.2  # between budgets that are not drawn to scale
MAX_DIRECT_LABELS = 12
LABEL_GAP = 5.0  # points of score between two labels at the right edge


def score_curve(summary: Summary, benchmark: str = MEAN, kind: Kind = "ratio") -> go.Figure:
    """Score against the budgets of one kind, smaller ones to the right.

    A line with 95% whiskers per method, the full cache as a dashed line.
    """
    title = f"Mean over {len(summary.benchmarks)} benchmarks" if benchmark == MEAN else benchmark
    figure = _base(title, AXES[kind], "score, %")
    places = _places(summary.by_kind.get(kind, ()))
    shown = [m for m in summary.methods if any((m, budget, benchmark) in summary.cells for budget in places)]
    look = styles(summary.methods)
    step = _dodge(list(places.values()), len(shown))
    for number, method in enumerate(shown):
        budgets = [budget for budget in places if (method, budget, benchmark) in summary.cells]
        # Whiskers of many methods at one budget would lie on top of each other.
        shift = (number - (len(shown) - 1) / 2) * step
        cells = [summary.cells[method, budget, benchmark] for budget in budgets]
        hover = [budget.phrase for budget in budgets]
        figure.add_trace(_line(method, look[method], [places[budget] + shift for budget in budgets], cells, hover))
    _mark_full(figure, summary.full(benchmark))
    low, high = (min(places.values()), max(places.values())) if places else (0.0, 1.0)
    labels = [str(budget) for budget in places]
    figure.update_xaxes(tickvals=list(places.values()), ticktext=labels, range=[low - 0.04, high + 0.04])
    if benchmark == MEAN and len(shown) <= MAX_DIRECT_LABELS:
        _label_ends(figure, high + 0.03)
    return figure


def score_by_bytes(summary: Summary, costs: Sequence[Cost]) -> go.Figure:
    """Mean score against every byte that decoding needs (KV, indexer keys, memory), as a share of the full cache."""
    figure = _base("Score for memory", "measured cache bytes, % of the full cache", "mean score, %")
    look = styles(summary.methods)
    for method in summary.methods:
        spent = {c.budget: 100 * c.cache_share for c in costs if c.method == method}
        budgets = sorted((b for b in spent if (method, b, MEAN) in summary.cells), key=spent.__getitem__)
        cells = [summary.cells[method, budget, MEAN] for budget in budgets]
        shares = [spent[budget] for budget in budgets]
        hover = [f"{share:.1f}% of the bytes ({budget.phrase})" for share, budget in zip(shares, budgets)]
        figure.add_trace(_line(method, look[method], shares, cells, hover))
    _mark_full(figure, summary.full(MEAN))
    figure.update_xaxes(rangemode="tozero", ticksuffix="%")
    return figure


def loss_curve(history: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Distillation loss by step from records with 'step', 'loss' and maybe 'lr' (drawn on a second axis)."""
    figure = _base("Distillation", "step", "loss")
    measured = [record for record in history if record.get("loss") is not None]
    steps = [record["step"] for record in measured]
    loss = np.array([record["loss"] for record in measured], dtype=float)
    window = max(1, len(loss) // 40)
    smooth = window > 1
    figure.add_trace(
        go.Scatter(
            x=steps, y=loss.tolist(), name="loss", line={"color": "rgba(47,125,240,0.35)" if smooth else "#2f7df0"}
        )
    )
    if smooth:
        mean = np.convolve(loss, np.ones(window) / window, mode="valid")
        trace = go.Scatter(
            x=steps[(window - 1) // 2 :][: mean.size],
            y=mean.tolist(),
            name=f"mean of {window}",
            line={"color": "#2f7df0", "width": 2.5},
        )
        figure.add_trace(trace)
    rates = [(record["step"], record["lr"]) for record in history if record.get("lr") is not None]
    if rates:
        x, y = zip(*rates)
        line = {"color": "#c28a00", "dash": "dot", "width": 1.5}
        figure.add_trace(go.Scatter(x=x, y=y, name="learning rate", yaxis="y2", line=line))
        axis = {
            "title": {"text": "learning rate", "font": {"size": 12}, "standoff": 8},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "exponentformat": "power",
        }
        figure.update_layout(yaxis2=axis, margin_r=76)
    figure.update_yaxes(range=None, rangemode="tozero", autorange=True)
    return figure


def _base(title: str, x_title: str, y_title: str) -> go.Figure:
    layout: dict[str, Any] = {
        "template": "none",
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 15}},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#6b7280"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 52, "r": 12, "t": 40, "b": 48},
        "hovermode": "closest",
        "dragmode": False,
        "xaxis": {
            "title": {"text": x_title, "font": {"size": 12}, "standoff": 10},
            "gridcolor": GRID,
            "zeroline": False,
            "fixedrange": True,
        },
        "yaxis": {
            "title": {"text": y_title, "font": {"size": 12}, "standoff": 6},
            "gridcolor": GRID,
            "zeroline": False,
            "fixedrange": True,
            "range": [-3, 104],
        },
    }
    return go.Figure(layout=layout)


def _line(method: str, style: Style, x: list[float], cells: list[Interval], hover: list[str]) -> go.Scatter:
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
    return go.Scatter(
        x=x,
        y=[100 * c.mean for c in cells],
        name=method,
        legendgroup=method,
        mode="lines+markers",
        line={"color": style.color, "width": style.width},
        marker={"color": style.color, "symbol": style.marker, "size": 9 if style.emphasised else 7},
        error_y=whiskers,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _mark_full(figure: go.Figure, full: Interval | None) -> None:
    if full is None:
        return
    figure.add_hrect(
        y0=100 * full.low, y1=100 * full.high, fillcolor=FULL_COLOR, opacity=0.13, line_width=0, layer="below"
    )
    figure.add_hline(y=100 * full.mean, line={"dash": "dash", "width": 1.5, "color": FULL_COLOR}, layer="below")
    note = {"text": f"full cache {100 * full.mean:.1f}%", "font": {"size": 11}, "showarrow": False}
    figure.add_annotation(x=1, xref="paper", xanchor="right", y=100 * full.mean, yanchor="bottom", **note)


def _places(budgets: Sequence[Budget]) -> dict[Budget, float]:
    """Where budgets of one kind stand on the axis: shares to scale; tokens and bytes, which span magnitudes, evenly."""
    return {b: number * EVEN_GAP if b.ratio is None else b.ratio for number, b in enumerate(budgets)}


def _dodge(places: Sequence[float], methods: int) -> float:
    """Horizontal step between methods: small against the closest pair of budgets."""
    gap = float(np.diff(sorted(places)).min()) if len(places) > 1 else 0.1
    return min(0.006, 0.4 * gap / max(methods, 1))


def _label_ends(figure: go.Figure, x: float) -> None:
    """Method names beside the right ends of their lines, pushed apart; text traces, so they hide with their line."""
    lines = sorted(figure.data, key=lambda trace: trace.y[-1])
    ends = spread([trace.y[-1] for trace in lines], LABEL_GAP)
    for trace, y in zip(lines, ends):
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


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Sorted values moved apart to at least `gap`, and as a whole back to where they were on average."""
    placed: list[float] = []
    for value in values:
        placed.append(max(value, placed[-1] + gap) if placed else value)
    drift = (sum(placed) - sum(values)) / len(placed) if placed else 0.0
    return [value - drift for value in placed]
