"""`indexmem sync`: MLflow brought up to date from what is stored."""

from __future__ import annotations

from indexmem.commands.report import mirror_grid, report_path
from indexmem.commands.sweep import sync_sweep
from indexmem.commands.training import mirror_training
from indexmem.config.schema import Experiment
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.progress.view import say
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import public


def sync_spec(experiment: Experiment) -> int:
    """Publish what is stored: the training's history and the grid's rows, or the spec's sweep. Safe to repeat.

    1 when MLflow did not take all of it. Raises UserError when nothing is stored.
    """
    sink = MlflowSink.open(experiment)
    if sink is None:
        raise UserError("tracking.enabled is false in this spec; there is nothing to publish to.")
    if experiment.sweep.axes:
        return sync_sweep(experiment)
    run = DistillRun.of(experiment)
    history = run.read_history()
    grid = plan(experiment)
    rows = grid.rows()
    if not history and not rows.num_rows:
        raise UserError(
            "Nothing is stored for this spec yet. Run `indexmem distill SPEC` or `indexmem eval SPEC` first."
        )
    published = []
    if history:
        published.append((f"{len(history)} training steps", mirror_training(experiment, run, sink, history)))
    if rows.num_rows:
        published.append((f"{rows.num_rows} rows", mirror_grid(sink, experiment, rows, report_path(experiment, grid))))
    for what, where in published:
        say(f"published {what} to {public(sink.uri)} ({where})" if where else f"NOT published: {what}; see the warning")
    return 0 if all(where for _, where in published) else 1
