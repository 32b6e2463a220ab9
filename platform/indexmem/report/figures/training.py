"""The distillation's loss and learning rate by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from indexmem.report.figures.base import frame


def loss_curve(history: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Distillation loss by step from records with 'step', 'loss' and maybe 'lr' (drawn on a second axis)."""
    figure = frame("Distillation", "step", "loss", y_range=None)
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
            "zeroline": False,
            "exponentformat": "power",
        }
        figure.update_layout(yaxis2=axis, margin_r=76)
    return figure.update_yaxes(rangemode="tozero")
