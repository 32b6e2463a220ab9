"""What a sweep looks like: its course or its front, parallel coordinates, what decides, and how trials learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from indexmem.report.figures.base import TEXT, frame
from indexmem.report.palette import faded
from indexmem.report.text import bytes_text, p_words
from indexmem.results.summary import ALPHA
from indexmem.results.sweeps import STOPPED, Sweep, Trial
from indexmem.sweep.importance import Importance

BEST, OTHER = "#e2542c", "#2f7df0"
MOST_LINES = 150  # trials in one chart of lines; more are left out, the best stay
ROW_PIXELS = 34
UNITS: Mapping[str, tuple[str, float]] = {"score": ("%", 100.0), "bytes": ("MiB", 2.0**-20), "ms": ("ms", 1.0)}


def value_words(metric: str, value: float) -> str:
    """A metric's value as a reader wants it: '62.0%', '1.2 MiB', '91 ms', '0.4321'."""
    kind = metric.split("/")[0]
    if kind == "score":
        return f"{100 * value:.1f}%"
    return bytes_text(value) if kind == "bytes" else f"{value:.0f} ms" if kind == "ms" else f"{value:.4g}"


def course(sweep: Sweep) -> go.Figure:
    """The objective of each complete trial, with the interval that it has, and the best so far."""
    objective = sweep.objectives[0]
    title, scale = _title(objective.metric)
    figure = frame("Course", "trial", title, y_range=None)
    numbers, values = [t.number for t in sweep.valued], [t.metrics[objective.metric] for t in sweep.valued]
    best = [objective.sign * min(objective.sign * v for v in values[: n + 1]) for n in range(len(values))]
    spreads = [trial.spread.get(objective.metric) for trial in sweep.valued]
    whiskers = {
        "type": "data", "symmetric": False, "width": 0, "thickness": 1.5, "color": faded(OTHER, 0.5),
        "array": [scale * (s.high - v) if s else 0 for s, v in zip(spreads, values)],
        "arrayminus": [scale * (v - s.low) if s else 0 for s, v in zip(spreads, values)],
    }  # fmt: skip
    points = _points(sweep, sweep.valued, numbers, [scale * value for value in values], OTHER)
    figure.add_trace(points.update(error_y=whiskers, name="trial"))
    line = {"color": BEST, "shape": "hv", "width": 2}
    figure.add_scatter(x=numbers, y=[scale * v for v in best], name="best so far", mode="lines", line=line)
    return figure.update_xaxes(tickformat="d")


def front(sweep: Sweep) -> go.Figure:
    """The first two objectives against each other, with a line through the trials that no other one beats."""
    first, second = sweep.objectives[:2]
    (y_title, y_scale), (x_title, x_scale) = _title(first.metric), _title(second.metric)
    figure = frame("Pareto front", x_title, y_title, y_range=None)
    others = [trial for trial in sweep.valued if trial not in sweep.front]
    for trials, name, color in ((others, "other trials", OTHER), (sweep.front, "Pareto front", BEST)):
        x, y = ([t.metrics[o.metric] * scale for t in trials] for o, scale in ((second, x_scale), (first, y_scale)))
        figure.add_trace(_points(sweep, trials, x, y, color).update(name=name))
    if len(sweep.objectives) == 2:
        figure.data[-1].update(mode="lines+markers", line={"color": BEST, "dash": "dot", "width": 1})
    return figure


def parallel(sweep: Sweep) -> go.Figure:
    """A line a trial through its settings and objectives, the best on top; trials without an objective end early.

    Plotly's own chart of this kind compiles code, which the page's policy forbids.
    """
    ranks = {trial.id: rank for rank, trial in enumerate(sweep.ranked)}
    last = len(sweep.trials)
    shown = sorted(sweep.trials, key=lambda t: ranks.get(t.id, last))[:MOST_LINES]
    metrics = [objective.metric for objective in sweep.objectives]
    scales = [_setting_scale([t.params.get(n) for t in shown], setting) for n, setting in sweep.axes.items()]
    scales += [_metric_scale([t.metrics[m] for t in sweep.valued], m) for m in metrics]
    figure = frame("Parallel coordinates", "", "", y_range=(-0.07, 1.09))
    winners = {trial.id for trial in sweep.winners}
    for trial in reversed(shown):
        rank = ranks.get(trial.id)
        found = [trial.params.get(name) for name in sweep.axes] + [trial.metrics.get(m) for m in metrics]
        heights = [None if v is None or (rank is None and p >= len(sweep.axes)) else scales[p][0](v)
                   for p, v in enumerate(found)]  # fmt: skip
        color = BEST if trial.id in winners else faded(OTHER, 0.9 - 0.7 * (rank or 0) / max(1, len(ranks) - 1))
        width = 3 if trial.id in winners else 1.5
        line = {"color": color, "width": width} if rank is not None else {"color": faded("#808894", 0.5), "dash": "dot"}
        figure.add_scatter(
            x=list(range(len(found))), y=heights, mode="lines+markers", line=line,
            marker={"size": 5, "color": line["color"]}, hovertext=sweep.describe(trial),
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    for place, (_, ticks) in enumerate(scales):
        figure.add_vline(x=place, line={"color": TEXT, "width": 1}, layer="below")
        for height, text in ticks:
            note = {"text": _clipped(text), "font": {"size": 11}, "showarrow": False, "xanchor": "left", "xshift": 5}
            figure.add_annotation(x=place, y=height, yanchor="bottom", **note)
    names = [name.replace(".", ".<br>") for name in (*sweep.axes, *metrics)]
    figure.update_yaxes(showgrid=False, showticklabels=False)
    figure.update_xaxes(
        tickvals=list(range(len(names))), ticktext=names, showgrid=False, range=[-0.15, len(names) - 0.4]
    )
    return figure.update_layout(height=420, margin={"l": 14, "r": 14, "b": 70})


def importance_chart(found: Sequence[Importance]) -> go.Figure:
    """A row an axis: the share that it explains with its interval; filled where it is more than chance."""
    figure = frame("What decides", "share of the variance, %", "", y_range=None)
    sure = [one.p_value < ALPHA for one in found]
    figure.add_scatter(
        x=[100 * one.share for one in found], y=[one.axis for one in found], mode="markers",
        marker={"size": 11, "color": OTHER, "symbol": ["circle" if s else "circle-open" for s in sure],
                "line": {"width": 2, "color": OTHER}},
        error_x={"type": "data", "symmetric": False, "width": 0, "thickness": 2, "color": OTHER,
                 "array": [100 * (one.high - one.share) for one in found],
                 "arrayminus": [100 * (one.share - one.low) for one in found]},
        hovertext=[f"{one.axis}: {100 * one.share:.0f}% [{100 * one.low:.0f}, {100 * one.high:.0f}], adjusted "
                   f"{p_words(one.p_value)}" for one in found],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(range=[-3, 103]).update_yaxes(autorange="reversed", type="category")
    return figure.update_layout(height=ROW_PIXELS * len(found) + 100)


def learning_curves(sweep: Sweep) -> go.Figure | None:
    """A training metric by step, a line a trial: the first objective where training reports it, else the loss."""
    names = dict.fromkeys(name for trial in sweep.trials for row in trial.curve for name in row if name != "step")
    metric = next((m for m in (sweep.objectives[0].metric, "loss", *names) if m in names), None)
    if metric is None:
        return None
    figure = frame(f"Training: {metric}", "step", metric, y_range=None)
    best, ranks = sweep.best, {trial.id: rank for rank, trial in enumerate(sweep.ranked)}
    drawn = sorted((t for t in sweep.trials if t.curve), key=lambda t: ranks.get(t.id, len(ranks)))[:MOST_LINES]
    for trial in reversed(drawn):
        rows = [row for row in trial.curve if metric in row]
        line = {"color": faded(OTHER, 0.45), "width": 1.5, "dash": "dot" if trial.status == STOPPED else "solid"}
        line |= {"color": BEST, "width": 3} if best is not None and trial.id == best.id else {}
        figure.add_scatter(
            x=[row["step"] for row in rows], y=[row[metric] for row in rows], mode="lines+markers", line=line,
            marker={"size": 4, "color": line["color"]},
            hovertemplate="%{hovertext}<br>step %{x}: %{y:.4g}<extra></extra>",
            hovertext=f"trial {trial.number}" + (", ended early" if trial.status == STOPPED else ""),
        )  # fmt: skip
    return figure


Scale = tuple[Callable[[Any], float], list[tuple[float, str]]]  # value -> height in [0, 1]; ticks


def _setting_scale(values: Sequence[Any], setting: Any) -> Scale:
    """Of a list the places of its values, of a range its own scale."""
    if isinstance(setting, list):
        most = max(1, len(setting) - 1)
        return lambda v: setting.index(v) / most, [(i / most, str(v)) for i, v in enumerate(setting)]
    low, high = setting["low"], setting["high"]
    at = (lambda v: math.log(v / low) / math.log(high / low)) if setting["log"] else lambda v: (v - low) / (high - low)
    middle = math.sqrt(low * high) if setting["log"] else (low + high) / 2
    return at, [(h, f"{v:.3g}") for h, v in ((0.0, low), (0.5, middle), (1.0, high))]


def _metric_scale(values: Sequence[float], metric: str) -> Scale:
    if not values:
        return lambda v: 0.5, []
    low, high = min(values), max(values)
    if low == high:
        return lambda v: 0.5, [(0.5, value_words(metric, low))]
    ticks = [(0.0, value_words(metric, low)), (1.0, value_words(metric, high))]
    return lambda v: (v - low) / (high - low), ticks


def _title(metric: str) -> tuple[str, float]:
    """An axis' title, and what a value is multiplied by for it."""
    unit, scale = UNITS.get(metric.split("/")[0], ("", 1.0))
    return f"{metric}, {unit}" if unit else metric, scale


def _points(sweep: Sweep, trials: Sequence[Trial], x: Sequence[float], y: Sequence[float], color: str) -> go.Scatter:
    return go.Scatter(
        x=list(x), y=list(y), mode="markers", marker={"color": color, "size": 9},
        hovertext=[sweep.describe(trial) for trial in trials], hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _clipped(text: str, most: int = 16) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
