"""`indexmem eval`: from a checked spec to rows, a published run, a report and a table."""

from __future__ import annotations

import os
from signal import Signals

from indexmem.cluster.connection import ray_cluster, wait_for_nodes
from indexmem.commands.report import NOT_RANKED, mirror_grid, print_report, print_scores, write_grid_report
from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.engine.decode import CPU_BATCH_BYTES
from indexmem.evaluate.grid import GridPlan, plan
from indexmem.eviction.footprint import Footprint
from indexmem.eviction.methods.simple import FullCache
from indexmem.files import check_writable
from indexmem.progress.view import ProgressView, say
from indexmem.provenance import provenance
from indexmem.tracking.links import grid_links
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import is_server


def evaluate_spec(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Evaluate the grid, publish it, write the report, print the table; a dry run says what would be done.

    Exit codes as of `evaluate_plan`.
    """
    grid = plan(experiment, require_checkpoint=not dry_run)
    if dry_run:
        from indexmem.evaluate.estimate import memory_sentence, time_sentence

        if print_plan(experiment, grid):
            here = not (address or os.environ.get("RAY_ADDRESS"))
            say(f"  time: {time_sentence(experiment, grid)}\n  memory: {memory_sentence(experiment, grid, here=here)}")
        return 0
    return evaluate_plan(experiment, grid, address)


def evaluate_plan(experiment: Experiment, grid: GridPlan, address: str | None = None) -> int:
    """What `evaluate_spec` does with a planned grid.

    1 when some rows failed, NOT_RANKED when the full cache is below its floor, 128 + the signal's number when one ended
    the run early.
    """
    rows = print_plan(experiment, grid)
    check_writable(run_root(experiment))
    if rows:
        from indexmem.evaluate.fanout import evaluate_on_ray

        config = experiment.grid
        view = ProgressView.open(f"{experiment.name} grid")
        with view, ray_cluster(address):
            wait_for_nodes(1, config.cpus_per_actor, config.gpus_per_actor, experiment.run.wait_for_nodes, say)
            progress = evaluate_on_ray(experiment, grid, provenance(), lambda progress: view.watch(progress.status))
        if progress.stopped_by is not None:
            stored = f"{progress.done} of {progress.total} rows are stored"
            say(f"Stopped by {Signals(progress.stopped_by).name}: {stored}. The same command goes on from here.")
            return 128 + progress.stopped_by
    return _finish(experiment, grid)


def print_plan(experiment: Experiment, grid: GridPlan) -> int:
    """Say what will be done; returns how many rows that is."""
    missing = grid.missing()
    rows = sum(int(missing_SC.sum()) for missing_SC in missing.values())
    samples = sum(int(missing_SC.any(axis=1).sum()) for missing_SC in missing.values())
    length = experiment.grid.length
    plain = Footprint.of(FullCache(), grid.geometry, length, experiment.model.element_size)
    full = plain.bytes_of(length)
    per_sample = sum(
        plain.bytes_of(min(length, plain.granted(cell.budget, length, equal_bytes=False))) for cell in grid.cells
    ) / len(grid.samples)
    limit = experiment.grid.batch_bytes or (None if experiment.grid.gpus_per_actor else CPU_BATCH_BYTES)
    batches = f", about {samples * -(-int(per_sample) // limit)} decode batches" if limit else ""
    alone = ", one for each question" if experiment.grid.question_aware else ""
    say(
        f"eval {experiment.name}: {len(grid.methods)} methods, {len(grid.cells)} cells, "
        f"{sum(map(len, grid.samples.values()))} samples of {length} tokens\n"
        f"  budgets: {', '.join(map(str, sorted({cell.budget for cell in grid.cells})))}\n"
        f"  to do: {rows} of {grid.row_count} rows = {grid.prefills(missing)} prefills{alone}{batches}\n"
        f"  KV cache: {full / 2**20:.0f} MiB full, {per_sample / 2**20:.0f} MiB for all cells of a sample\n"
        f"  results: {run_root(experiment)}"
    )
    for line in grid.lacking:
        say(f"  not checked: {line}")
    if grid.outline:
        say("  samples were not built: their number is the one asked for, and all rows count as missing")
    return rows


def _finish(experiment: Experiment, grid: GridPlan) -> int:
    rows = grid.rows()
    links = grid_links(experiment, rows)
    path = write_grid_report(experiment, grid, rows, links)
    sink = MlflowSink.open(experiment)
    where = None
    if sink is not None:
        say("publishing to MLflow")
        where = mirror_grid(sink, experiment, rows, path)
    failed = sum(status != "ok" for status in rows["status"].to_pylist())
    gate = print_scores(experiment, rows)
    if failed:
        print(f"{failed} rows failed; the report lists why, and the same command tries them again.")
    print_report(path)
    if where is not None and sink is not None:
        served = "" if is_server(sink.uri) else "  (served by `make ui` or `indexmem ui`)"
        print(f"MLflow: {links.get('MLflow run', where)}{served}")
    return NOT_RANKED if gate.shortfalls else int(failed > 0)
