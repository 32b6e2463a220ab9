"""A sweep as a page that opens offline: its Pareto front, or its course, above a table of all trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.csv
from plotly.subplots import make_subplots

from indexmem.files import write_whole
from indexmem.results.sweeps import Sweep, Trial

HIDDEN = {"id", "distill_id"}  # columns for programs, left out of the page
FRONT, OTHER = "#e2542c", "#2f7df0"
HEIGHT = 1000  # pixels, chart and table


def write_sweep_report(sweep: Sweep, folder: Path) -> Path:
    """Write <name>-sweep.html and <name>-sweep.csv into `folder`; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{sweep.name}-sweep.html"
    write_whole(page, picture(sweep).to_html(include_plotlyjs=True))
    buffer = pa.BufferOutputStream()
    pyarrow.csv.write_csv(_flat(sweep.table()), buffer)
    write_whole(page.with_suffix(".csv"), buffer.getvalue())
    return page


def picture(sweep: Sweep) -> go.Figure:
    """The page's figure. Of more than two objectives the third is the size of a point."""
    figure = make_subplots(rows=2, cols=1, specs=[[{"type": "xy"}], [{"type": "table"}]], row_heights=[0.55, 0.45])
    several = len(sweep.objectives) > 1
    figure.add_traces(_pareto(sweep) if several else _course(sweep), rows=1, cols=1)
    metrics = [objective.metric for objective in sweep.objectives]
    figure.update_xaxes(title=metrics[1] if several else "trial").update_yaxes(title=metrics[0])
    table = _flat(sweep.table().drop_columns(sorted(HIDDEN)))
    cells = [[_cell(value) for value in column.to_pylist()] for column in table.columns]
    figure.add_trace(go.Table(header={"values": table.column_names}, cells={"values": cells}), row=2, col=1)
    figure.update_layout(title=f"{sweep.name}: {len(sweep.trials)} of {sweep.planned} trials", height=HEIGHT)
    return figure


def _pareto(sweep: Sweep) -> list[go.Scatter]:
    """The first objective against the second; a line through the trials that no other one beats."""
    front = sweep.front
    others = [trial for trial in sweep.valued if trial not in front]
    return [
        _points(sweep, others, "other trials", OTHER, "markers"),
        _points(sweep, front, "Pareto front", FRONT, "markers" if len(sweep.objectives) > 2 else "lines+markers"),
    ]


def _points(sweep: Sweep, trials: list[Trial] | tuple[Trial, ...], name: str, color: str, mode: str) -> go.Scatter:
    first, second, *more = [[trial.metrics[o.metric] for trial in trials] for o in sweep.objectives]
    largest = max(more[0], default=1.0) or 1.0 if more else 1.0
    sizes = [8 + 16 * value / largest for value in more[0]] if more else 10
    marker = {"color": color, "size": sizes}
    texts = [sweep.describe(trial) for trial in trials]
    return go.Scatter(x=second, y=first, name=name, mode=mode, marker=marker, text=texts, hoverinfo="text")


def _course(sweep: Sweep) -> list[go.Scatter]:
    """The objective of each trial, and the best so far."""
    objective = sweep.objectives[0]
    numbers = [trial.number for trial in sweep.valued]
    values = [trial.metrics[objective.metric] for trial in sweep.valued]
    best = [objective.sign * min(objective.sign * v for v in values[: n + 1]) for n in range(len(values))]
    texts = [sweep.describe(trial) for trial in sweep.valued]
    return [
        go.Scatter(x=numbers, y=values, name="trial", mode="markers", marker={"color": OTHER, "size": 10}, text=texts),
        go.Scatter(x=numbers, y=best, name="best so far", mode="lines", line={"color": FRONT, "shape": "hv"}),
    ]


def _flat(table: pa.Table) -> pa.Table:
    """Lists as text: neither CSV nor a table's cell holds them."""
    for index, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [None if value is None else str(value) for value in table[index].to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if type(value) is float else str(value)
