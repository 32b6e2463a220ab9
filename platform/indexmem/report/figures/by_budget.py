"""What was measured at each budget, a line per method: bytes, time, cut answers, tokens really held, fidelity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from indexmem.config.budget import Kind
from indexmem.report.figures.base import frame, plain_line
from indexmem.report.figures.curves import AXES
from indexmem.report.palette import FULL_COLOR, style
from indexmem.report.text import bytes_text, seconds_text
from indexmem.results.costs import Cost
from indexmem.results.schema import FULL_LABEL

Measured = Callable[[Cost], float | None]  # None: not measured, so not drawn


def bytes_by_budget(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Measured bytes of all that decoding needs, in MiB."""
    figure = frame("Cache bytes", AXES[kind], "MiB a sample", y_range=None)
    _add_lines(figure, costs, methods, kind, lambda c: c.all_bytes / 2**20, lambda c: bytes_text(c.all_bytes))
    return _mark_full(figure, costs, lambda c: c.all_bytes / 2**20)


def time_by_budget(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Milliseconds of decoding an answer alone, where that was measured."""
    figure = frame("Decode time", AXES[kind], "an answer decoded alone, ms", y_range=None)

    def alone(cost: Cost) -> float | None:
        return None if cost.decode_seconds is None else 1000 * cost.decode_seconds

    _add_lines(figure, costs, methods, kind, alone, lambda c: seconds_text(c.decode_seconds or 0.0))
    return _mark_full(figure, costs, alone)


def truncation(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Share of answers that hit their limit of tokens, in a run with a budget while decoding."""
    figure = frame("Answers cut at their limit", AXES[kind], "cut answers, %")

    def cut(cost: Cost) -> float | None:
        return None if cost.truncated is None else 100 * cost.truncated

    return _add_lines(figure, costs, methods, kind, cut, lambda c: f"{cut(c):.0f}% cut")


def agreement(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Share of the full cache's tokens that a cell finds likeliest, too."""
    figure = frame("Tokens as the full cache's", AXES[kind], "same likeliest token, %")

    def same(cost: Cost) -> float | None:
        return None if cost.fidelity_top1 is None else 100 * cost.fidelity_top1

    return _add_lines(figure, costs, methods, kind, same, lambda c: f"{same(c):.1f}% of tokens")


def distance(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Distance from the full cache's probabilities."""
    figure = frame("Distance from the full cache", AXES[kind], "KL, nats a token", y_range=None)
    _add_lines(figure, costs, methods, kind, lambda c: c.fidelity_kl, lambda c: f"{c.fidelity_kl:.3g} nats a token")
    return figure.update_yaxes(rangemode="tozero")


def kept_while_decoding(costs: Sequence[Cost], methods: Sequence[str], kind: Kind) -> go.Figure:
    """Tokens that a head held while decoding: the mean as a line, the most as a whisker above it."""
    figure = frame("Tokens held while decoding", AXES[kind], "tokens a head", y_range=None)

    def above(cost: Cost) -> float:
        return max(0.0, (cost.decode_kept_max or 0) - (cost.decode_kept_mean or 0.0))

    def hover_text(cost: Cost) -> str:
        mean = cost.decode_kept_mean or 0.0
        return f"{mean:,.0f} tokens, at most {mean + above(cost):,.0f}"

    _add_lines(figure, costs, methods, kind, lambda c: c.decode_kept_mean, hover_text, above)
    return figure.update_yaxes(rangemode="tozero")


def _add_lines(
    figure: go.Figure,
    costs: Sequence[Cost],
    methods: Sequence[str],
    kind: Kind,
    measured: Measured,
    hover_text: Callable[[Cost], str],
    above: Callable[[Cost], float] | None = None,
) -> go.Figure:
    """A line per method; `told` is the hover's last line, `above` a whisker's length."""
    budgets = sorted({cost.budget for cost in costs if cost.method != FULL_LABEL and cost.budget.kind == kind})
    x_of = {budget: number for number, budget in enumerate(budgets)}
    for method in methods:
        mine = [c for c in costs if c.method == method and c.budget in x_of and measured(c) is not None]
        mine.sort(key=lambda cost: cost.budget)
        hover = [f"<b>{method}</b><br>{cost.budget.phrase}<br>{hover_text(cost)}" for cost in mine]
        values = [value for cost in mine if (value := measured(cost)) is not None]
        line = plain_line(method, style(method), [x_of[cost.budget] for cost in mine], values, hover)
        if above is not None:
            whisker = {"type": "data", "symmetric": False, "arrayminus": [0.0] * len(mine), "width": 3}
            line.update(error_y=whisker | {"array": list(map(above, mine))})
        figure.add_trace(line)
    return figure.update_xaxes(tickvals=list(x_of.values()), ticktext=list(map(str, x_of)))


def _mark_full(figure: go.Figure, costs: Sequence[Cost], measured: Measured) -> go.Figure:
    full = [value for cost in costs if cost.method == FULL_LABEL and (value := measured(cost)) is not None]
    if full:
        figure.add_hline(y=full[0], line={"dash": "dash", "width": 1.5, "color": FULL_COLOR}, layer="below")
        note = {"text": "full cache", "font": {"size": 11}, "showarrow": False}
        figure.add_annotation(x=1, xref="paper", xanchor="right", y=full[0], yanchor="bottom", **note)
    return figure.update_yaxes(rangemode="tozero")
