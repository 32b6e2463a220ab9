"""A grid's charts for MLflow: a PNG that the run's note shows, and one page of interactive charts."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping

import plotly.graph_objects as go

from indexmem.results.summary import MEAN, Summary

PANEL_INCHES = (7.0, 3.8)
DOTS_PER_INCH = 100
MOST_LINES = 10  # more lines than colours that can be told apart; the interactive charts have all
AXES = {"ratio": "KV cache evicted", "tokens": "tokens kept per KV head", "bytes": "bytes of all that is kept"}


def score_chart(summary: Summary) -> bytes:
    """PNG: mean score against budget with 95% whiskers, a panel per kind of budget, smaller budgets to the right."""
    from matplotlib.figure import Figure  # here: every command would wait most of a second for it

    kinds = summary.by_kind
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * max(1, len(kinds)), height), dpi=DOTS_PER_INCH, layout="constrained")
    full = summary.full(MEAN)
    for number, (kind, budgets) in enumerate(kinds.items()):
        axes = figure.add_subplot(1, len(kinds), number + 1)
        for method in summary.methods[:MOST_LINES]:
            found = {
                at: summary.cells[key] for at, b in enumerate(budgets) if (key := (method, b, MEAN)) in summary.cells
            }
            means = [100 * cell.mean for cell in found.values()]
            whiskers = [
                [100 * (cell.mean - cell.low) for cell in found.values()],
                [100 * (cell.high - cell.mean) for cell in found.values()],
            ]
            axes.errorbar(
                list(found), means, whiskers, label=method, marker="o", markersize=4, elinewidth=0.8, capsize=2
            )
        if full is not None:
            axes.axhline(100 * full.mean, color="0.4", linestyle="--", linewidth=1, label="full cache")
        axes.set_xticks(range(len(budgets)), [str(budget) for budget in budgets])
        axes.set(xlabel=AXES[kind], ylabel="mean score, %", ylim=(-3, 103))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if kinds:
        handles, texts = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside right upper", fontsize="small", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def charts_page(title: str, figures: Mapping[str, go.Figure]) -> str:
    """One HTML page with the figures (heading -> figure), which needs no network: the library is in it, once."""
    parts = [f"<!doctype html><meta charset='utf-8'><title>{html.escape(title)}</title>"]
    for number, (heading, figure) in enumerate(figures.items()):
        parts.append(f"<h2 style='font: 600 16px system-ui'>{html.escape(heading)}</h2>")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, default_height="460px"))
    return "\n".join(parts)
