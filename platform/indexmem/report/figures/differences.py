"""Ablations as a forest: what each variant adds to its baseline, with the interval of the paired difference."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from indexmem.report.ablations import Ablation
from indexmem.report.figures.base import TEXT, frame
from indexmem.report.palette import style
from indexmem.report.text import p_words, signed
from indexmem.results.summary import ALPHA

ROW_PIXELS = 30


def forest(found: Sequence[Ablation]) -> go.Figure:
    """A row per (variant, budget) of one baseline; filled markers differ by more than noise, hollow ones do not."""
    baseline = found[0].baseline
    variants = list(dict.fromkeys(v for ablation in found for v in ablation.variants))
    rows = [(v, a) for v in variants for a in found if v in a.variants]
    figure = frame(f"Against {baseline}", f"points of mean score above {baseline}", "", y_range=None)
    for variant in variants:
        mine = [(row, a.budget, a.variants[variant]) for row, (v, a) in enumerate(rows) if v == variant]
        color = style(variant).color
        decided = [difference.p_value < ALPHA for _, _, difference in mine]
        symbols = ["circle" if sure else "circle-open" for sure in decided]
        figure.add_trace(
            go.Scatter(
                x=[100 * d.mean for _, _, d in mine],
                y=[row for row, _, _ in mine],
                name=variant,
                legendgroup=variant,
                mode="markers",
                marker={
                    "color": color,
                    "size": 10,
                    "symbol": symbols,
                    "line": {"width": 2, "color": color},
                },
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * (d.high - d.mean) for _, _, d in mine],
                    "arrayminus": [100 * (d.mean - d.low) for _, _, d in mine],
                    "color": color,
                    "thickness": 2,
                    "width": 0,
                },
                hovertext=[
                    f"<b>{variant}</b> {b.phrase}<br>{signed(d.mean)} points [{signed(d.low)}, {signed(d.high)}], "
                    f"adjusted {p_words(d.p_value)}, n = {d.n}"
                    for _, b, d in mine
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    figure.add_vline(x=0, line={"color": TEXT, "width": 1.2})
    figure.update_layout(height=ROW_PIXELS * len(rows) + 110)
    ticks = [f"{variant}  {ablation.budget}" for variant, ablation in rows]
    return figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=ticks, range=[len(rows) - 0.4, -0.6])
