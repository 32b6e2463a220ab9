"""Figures as PNG and SVG files, drawn by a headless Chromium that is installed on the machine. No network is used."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go

from indexmem.errors import UserError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT, SCALE = 900, 480, 2  # pixels; twice as many in a PNG
ON_WHITE = {"paper_bgcolor": "white", "font_color": "#333"}


def check_drawable() -> None:
    """Raises UserError where figures cannot be drawn: without a browser, or without the package that directs it."""
    if not any(map(shutil.which, BROWSERS)):
        raise UserError(f"Images need a browser, one of {', '.join(BROWSERS)}. Example: apt-get install chromium.")
    if find_spec("kaleido") is None:
        raise UserError("Images need the package kaleido: pip install 'indexmem[images]'.")


def write_images(figures: Mapping[str, go.Figure], folder: Path) -> None:
    """Write <name>.png and <name>.svg of each figure. Raises UserError where they cannot be drawn."""
    check_drawable()
    import kaleido  # only those who draw need it

    folder.mkdir(parents=True, exist_ok=True)
    shown = {name: go.Figure(standing_alone(figure)).update_layout(ON_WHITE) for name, figure in figures.items()}
    drawings = [
        {
            "fig": figure,
            "path": folder / f"{name}.{kind}",
            "opts": {"format": kind, "width": WIDTH, "height": figure.layout.height or HEIGHT, "scale": scale},
        }
        for name, figure in shown.items()
        for kind, scale in (("png", SCALE), ("svg", 1))
    ]
    # Not plotly.io.write_images, whose page asks the network for a library of formulas.
    kaleido.write_fig_from_object_sync(drawings, kopts={"mathjax": False})


def standing_alone(figure: go.Figure) -> go.Figure:
    """With a legend if methods have no names beside them: the page has one for all its figures, a file has none."""
    drawn = [trace for trace in figure.data if isinstance(trace, go.Scatter) and trace.mode]
    methods = [trace.name for trace in drawn if trace.legendgroup]
    if len(methods) < 2 or any(trace.mode == "text" for trace in drawn) or figure.layout.yaxis.ticktext:
        return figure
    alone = go.Figure(figure)
    for trace in alone.data:
        trace.showlegend = trace.name in methods
    return alone.update_layout(showlegend=True)
