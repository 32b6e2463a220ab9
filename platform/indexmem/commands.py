"""What each verb does, from a checked spec to a printed result."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.history import History
from indexmem.distill.runs import DistillRun
from indexmem.distill.trainees.registry import make_trainees
from indexmem.engine.decode import CPU_BATCH_BYTES
from indexmem.errors import UserError
from indexmem.evaluate.budgets import Footprint
from indexmem.evaluate.grid import GridPlan, plan
from indexmem.evaluate.progress import Meter
from indexmem.eviction.checkpoint import read_config
from indexmem.eviction.methods.simple import FullCache
from indexmem.models.backbone import inspect
from indexmem.models.texts import load_texts
from indexmem.report.html import write_report
from indexmem.report.tables import comparison_table
from indexmem.runtime import check_resources, cluster
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.provenance import provenance

PROGRESS_SECONDS = 10.0


def distill(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Train the spec's indexer, or find it finished. Prints progress, publishes the run, says where the result is."""
    run = _check_distill(experiment)
    config = experiment.distill
    say(
        f"distill {experiment.name}: {config.schedule.steps} steps x {config.workers} workers x {config.batch_size} x "
        f"{config.length} tokens on {experiment.model.id} -> {run.folder}"
    )
    for line in _describe_modules(experiment):
        say(f"  {line}")
    if dry_run:
        return 0
    sink = MlflowSink.open(experiment)
    if run.finished:
        say(f"already trained: {run.final}")
    else:
        from indexmem.distill.train import train

        meter = _TrainingMeter(experiment, run, sink)
        with cluster(address, cpus=None if address else config.workers):
            check_resources(config.workers, 1, 1 if config.use_gpu else 0)
            train(experiment, run, meter)
    history = History(run.history, span=config.checkpoint_every).read()
    _publish_distill(experiment, run, sink, history)
    trained = read_config(run.final)["trained"]
    say(f"trained {trained['step']} steps, {_losses(history)}: {run.final}")
    return 0


def evaluate(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Evaluate the grid, publish it, write the report, print the table.

    1 when some rows failed, 128 + the signal's number when one ended the run early.
    """
    grid = plan(experiment, require_checkpoint=not dry_run)
    rows = _print_plan(experiment, grid)
    if dry_run:
        return 0
    if rows:
        from indexmem.evaluate.fanout import run_grid

        with cluster(address):
            progress = run_grid(experiment, grid, provenance(), Meter(say, PROGRESS_SECONDS))
        if progress.stopped_by is not None:
            stored = f"{progress.done} of {progress.total} rows are stored"
            say(f"Stopped by {Signals(progress.stopped_by).name}: {stored}. The same command goes on from here.")
            return 128 + progress.stopped_by
    return _finish(experiment, grid)


def report(experiment: Experiment) -> int:
    """Write the report and print the table from what is stored."""
    grid = plan(experiment)
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    if not rows.num_rows:
        raise UserError("Nothing is stored for this spec yet. Run `python jobs/eval_grid.py SPEC` first.")
    path = _write_report(experiment, grid, rows)
    print(comparison_table(rows))
    print(f"Report: {path}")
    return 0


def sync(experiment: Experiment) -> int:
    """Publish what is stored: the trained indexer's history and the grid's rows. Safe to repeat."""
    sink = MlflowSink.open(experiment)
    if sink is None:
        raise UserError("tracking.enabled is false in this spec; there is nothing to publish to.")
    run = DistillRun.of(experiment)
    history = History(run.history, span=experiment.distill.checkpoint_every).read()
    if history:
        _publish_distill(experiment, run, sink, history)
    grid = plan(experiment)
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    where = sink.publish_grid(experiment, rows) if rows.num_rows else None
    say(f"published {rows.num_rows} rows and {len(history)} training steps to {sink.uri} ({where})")
    return 0


def _describe_modules(experiment: Experiment) -> list[str]:
    """Size of everything that the spec trains: parameters and, for memories, the state that each sequence carries."""
    lines = []
    for trainee in make_trainees(experiment, inspect(experiment.model)):
        count = sum(p.numel() for p in trainee.parameters())
        state = getattr(trainee.trained, "state_bytes", None)
        carries = "" if state is None else f", state {state / 2**20:.2f} MiB a sequence"
        lines.append(f"{trainee.name}: {count:,} parameters ({count // len(trainee.trained):,} a module){carries}")
    return lines


def _losses(history: Sequence[dict[str, Any]]) -> str:
    """First and last value of every loss, for example 'loss 0.33 -> 0.15'."""
    names = [name for name in history[-1] if name.startswith("loss") and "worst" not in name]
    first = {name: next(row[name] for row in history if name in row) for name in names}
    return ", ".join(f"{name} {first[name]:.4f} -> {history[-1][name]:.4f}" for name in names)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _check_distill(experiment: Experiment) -> DistillRun:
    """All that can be wrong with a training spec, found before Ray starts."""
    geometry = inspect(experiment.model)
    config = experiment.distill
    if config.length > geometry.max_positions:
        raise UserError(
            f"distill.length={config.length} is more than the model's context of {geometry.max_positions} tokens. "
            f"Use distill.length={geometry.max_positions} or less."
        )
    if config.length <= experiment.target.sinks + 1:
        raise UserError(
            f"distill.length={config.length} leaves no tokens after target.sinks={experiment.target.sinks}."
        )
    if not config.texts:
        raise UserError("distill.texts is empty. Example: distill.texts='[king-james]'")
    load_texts(config.texts)
    return DistillRun.of(experiment)


def _publish_distill(
    experiment: Experiment, run: DistillRun, sink: MlflowSink | None, history: Sequence[dict[str, Any]]
) -> None:
    if sink is None:
        return
    trainees = make_trainees(experiment, inspect(experiment.model))
    sizes = {f"{t.name}.parameters": sum(p.numel() for p in t.parameters()) for t in trainees}
    where = sink.publish_distill(
        experiment,
        run.id,
        history,
        artifacts={"checkpoint": run.final} if run.finished else None,
        finished=run.finished,
        params=sizes,
    )
    if where:
        say(f"MLflow: {where}")


def _finish(experiment: Experiment, grid: GridPlan) -> int:
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    path = _write_report(experiment, grid, rows)
    sink = MlflowSink.open(experiment)
    where = None
    if sink is not None:
        say("publishing to MLflow")
        where = sink.publish_grid(experiment, rows, artifacts={path.name: path})
    failed = sum(status != "ok" for status in rows["status"].to_pylist())
    print(comparison_table(rows))
    if failed:
        print(f"{failed} rows failed; the report lists why, and the same command tries them again.")
    print(f"Report: {path}")
    if where is not None and sink is not None:
        print(f"MLflow: {sink.uri}  run {where}  (look with `make ui` or `indexmem ui`)")
    return 1 if failed else 0


def _write_report(experiment: Experiment, grid: GridPlan, rows: pa.Table) -> Path:
    retention = grid.store.read(grid.partitions, "retention", cell_ids=grid.cell_ids)
    history: list[dict[str, Any]] = []
    if grid.checkpoint is not None and not experiment.indexer.checkpoint:
        history = History(DistillRun.of(experiment).history, span=experiment.distill.checkpoint_every).read()
    return write_report(
        experiment, rows, retention, run_root(experiment) / "reports" / f"{experiment.name}.html", history
    )


def _print_plan(experiment: Experiment, grid: GridPlan) -> int:
    """Say what will be done; returns how many rows that is."""
    missing = grid.missing().values()
    rows = sum(int(missing_SC.sum()) for missing_SC in missing)
    samples = sum(int(missing_SC.any(axis=1).sum()) for missing_SC in missing)
    length = experiment.grid.length
    plain = Footprint.of(FullCache(), grid.geometry, length, experiment.model.element_size)
    full = plain.bytes_of(length)
    per_sample = sum(plain.bytes_of(plain.target(cell.budget, length)) for cell in grid.cells) / len(grid.samples)
    batches = -(-int(per_sample) // (experiment.grid.batch_bytes or CPU_BATCH_BYTES))
    say(
        f"eval {experiment.name}: {len(grid.methods)} methods, {len(grid.cells)} cells, "
        f"{sum(map(len, grid.samples.values()))} samples of {length} tokens\n"
        f"  budgets: {', '.join(map(str, sorted({cell.budget for cell in grid.cells})))}\n"
        f"  to do: {rows} of {grid.row_count} rows = {samples} prefills, "
        f"about {samples * batches} decode batches\n"
        f"  KV cache: {full / 2**20:.0f} MiB full, {per_sample / 2**20:.0f} MiB for all cells of a sample\n"
        f"  results: {run_root(experiment)}"
    )
    return rows


class _TrainingMeter:
    """Prints a line now and then while training, and mirrors the metrics to MLflow."""

    def __init__(self, experiment: Experiment, run: DistillRun, sink: MlflowSink | None) -> None:
        self.experiment, self.run, self.sink = experiment, run, sink
        self.printed_at, self.printed_step = time.monotonic(), -1

    def __call__(self, history: Sequence[dict[str, Any]]) -> None:
        if not history or time.monotonic() - self.printed_at < PROGRESS_SECONDS:
            return
        step, total = history[-1]["step"] + 1, self.experiment.distill.schedule.steps
        if step == self.printed_step:
            return
        recent = history[-10:]
        loss = sum(row["loss"] for row in recent) / len(recent)
        rate = sum(row["tokens_per_second"] for row in recent) / len(recent)
        tokens = self.experiment.distill.workers * self.experiment.distill.batch_size * self.experiment.distill.length
        left = (total - step) * tokens / rate
        say(f"  step {step}/{total}  loss {loss:.4f}  {rate:.0f} tokens/s  about {left:.0f} s left")
        self.printed_at, self.printed_step = time.monotonic(), step
        if self.sink is not None:
            self.sink.publish_distill(self.experiment, self.run.id, history)
