"""A sweep as parallel coordinates, and the weight of its settings as bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from indexmem.report.figures.base import TEXT, axis, frame
from indexmem.report.sweeps import Importance, scaled, values, varied
from indexmem.results.sweeps import Sweep

SCALE = "Viridis"
MAX_TICKS = 6
TICK = "tick"  # annotations of this name get the page's background, to be read over lines


def parallel_coordinates(sweep: Sweep) -> go.Figure:
    """A line per finished trial through its settings to its objective; bright is good, the best one is thick.

    Drawn from plain lines: plotly's own trace of this kind needs WebGL and scripts that the page forbids.
    """
    objective = sweep.objectives[0]
    axes = varied(sweep)
    trials = sweep.ranked[::-1]  # the best lie on top
    figure = frame(f"Sweep {sweep.name}", "", "", y_range=(-0.06, 1.06))
    results = np.array([trial.metrics[objective.metric] for trial in trials])
    low, span = (results.min(), float(np.ptp(results)) or 1.0) if len(results) else (0.0, 1.0)
    for trial, result in zip(trials, results):
        height = float((result - low) / span)
        good = 1 - height if objective.mode == "min" else height
        settings = "<br>".join(f"{name} = {trial.params.get(name)}" for name in axes)
        best = trial is trials[-1]
        figure.add_trace(
            go.Scatter(
                x=list(range(len(axes) + 1)),
                y=[*(scaled(sweep, name, trial.params.get(name)) for name in axes), height],
                mode="lines",
                line={"color": sample_colorscale(SCALE, [0.9 * good])[0], "width": 4 if best else 1.5},
                opacity=1.0 if best else 0.75,
                hovertext=f"<b>trial {trial.number}: {objective.metric} {result:.4g}</b><br>{settings}",
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    for height, name in enumerate(axes):
        known = values(sweep, name)
        for value in known[:: -(-len(known) // MAX_TICKS)]:
            _tick(
                figure, height, scaled(sweep, name, value), f"{value:.3g}" if isinstance(value, float) else str(value)
            )
    for share in (0.0, 0.5, 1.0):
        _tick(figure, len(axes), share, f"{low + share * span:.3g}")
    ticks = [*axes, objective.metric]
    figure.update_xaxes(tickvals=list(range(len(ticks))), ticktext=ticks, range=[-0.15, len(axes) + 0.35])
    return figure.update_yaxes(visible=False)


def importance_bars(found: Sequence[Importance]) -> go.Figure:
    """Bars with the spread over shuffles, heaviest on top."""
    figure = frame("Which settings matter", "loss of fit (R²) when the setting is shuffled", "", y_range=None)
    ordered = list(reversed(found))
    figure.add_trace(
        go.Bar(
            x=[weight.mean for weight in ordered],
            y=[weight.axis for weight in ordered],
            orientation="h",
            marker={"color": "#2f7df0"},
            error_x={"array": [weight.spread for weight in ordered], "thickness": 1.5, "width": 0, "color": TEXT},
            hovertemplate="%{y}: %{x:.2f}<extra></extra>",
        )
    )
    return figure.update_layout(yaxis=axis(), bargap=0.45, height=46 * len(found) + 90)


def _tick(figure: go.Figure, x: float, y: float, text: str) -> None:
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor="left", xshift=5, font={"size": 11}, name=TICK)
