"""`indexmem sync`: MLflow brought up to date from what is stored."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.workflows.grid_mirror import mirror_grid
from indexmem.workflows.grid_report import report_path
from indexmem.workflows.sweep import sync_sweep
from indexmem.workflows.terminal import say
from indexmem.workflows.training import publish_training, read_history


def sync(experiment: Experiment) -> int:
    """Publish what is stored: the training's history and the grid's rows, or the spec's sweep. Safe to repeat."""
    sink = MlflowSink.open(experiment)
    if sink is None:
        raise UserError("tracking.enabled is false in this spec; there is nothing to publish to.")
    if experiment.sweep.axes:
        return sync_sweep(experiment)
    run = DistillRun.of(experiment)
    history = read_history(experiment, run)
    if history:
        publish_training(experiment, run, sink, history)
    grid = plan(experiment)
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    where = mirror_grid(sink, experiment, rows, report_path(experiment)) if rows.num_rows else None
    say(f"published {rows.num_rows} rows and {len(history)} training steps to {sink.uri} ({where})")
    return 0
