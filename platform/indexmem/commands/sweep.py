"""`indexmem sweep`: from a checked spec to trials, a published sweep, a picture and the best settings."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from indexmem.cluster.connection import ray_cluster, wait_for_nodes, workers_on
from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.checks import check_distill
from indexmem.errors import UserError
from indexmem.fetching import noted
from indexmem.files import check_writable
from indexmem.locks.leases import hold
from indexmem.progress.view import ProgressView, say
from indexmem.provenance import provenance
from indexmem.results.sweeps import FAILED, Sweep, Trial
from indexmem.sweep.best_spec import write_best_spec
from indexmem.sweep.ledger import Ledger
from indexmem.sweep.page import write_sweep_report
from indexmem.sweep.plan import SweepPlan, plan_sweep
from indexmem.sweep.progress import SweepProgress
from indexmem.sweep.proposals import Proposer
from indexmem.sweep.trial import evaluates, trains
from indexmem.tracking.mlflow_sink import MlflowSink

PUBLISH_SECONDS = 60.0  # between two looks at what MLflow lacks, while a sweep runs


def sweep_spec(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Run the spec's sweep, or what is left of it; publish it, draw it, print the best settings.

    1 when some trials failed, or winners were not evaluated on fresh samples. Raises UserError when another driver has
    taken the sweep over.
    """
    plan = plan_sweep(experiment)
    lacking: list[str] = []
    if trains(experiment):
        specs = map(plan.space.spec, plan.space.probes())
        # Reading texts takes a second: only what differs in what is checked.
        for spec in {(s.model, s.distill.length, s.distill.texts, s.target.sinks): s for s in specs}.values():
            with noted(lacking):
                check_distill(spec)
    say("\n".join([describe_plan(plan), *(f"  not checked: {line}" for line in lacking)]))
    if dry_run:
        _say_time(plan)
        return 0
    check_writable(run_root(experiment))
    origin = provenance()
    with hold(run_root(experiment) / "leases", f"sweep-{plan.sweep.id}") as leases:
        ledger = Ledger(plan.folder, plan.sweep, Proposer(plan.space), origin["git_commit"])
        if ledger.left or ledger.sweep.unreported:
            _run(plan, ledger, origin, address, leases.check)
        _finish(experiment, ledger.sweep)
        return int(bool(_failed(ledger.sweep)) or bool(ledger.sweep.unreported))


def _say_time(plan: SweepPlan) -> None:
    from indexmem.distill.estimate import training_time
    from indexmem.evaluate.estimate import time_sentence
    from indexmem.evaluate.grid import plan as plan_grid

    experiment = plan.space.experiment
    if trains(experiment):
        early = ", some of which may end early or be shared"
        say(f"  time of each of {plan.sweep.planned} trainings{early}:\n    {training_time(experiment, None)}")
    if evaluates(experiment):
        grid = plan_grid(experiment.selecting, require_checkpoint=False)
        say(f"  time of each of {plan.sweep.planned} evaluations:\n    {time_sentence(experiment, grid)}")


def describe_plan(plan: SweepPlan) -> str:
    """What will be done, as lines."""
    experiment, space, settings = plan.space.experiment, plan.space, plan.space.experiment.sweep
    stored = plan.folder.trials()
    here = plan.concurrency(workers_on({"CPU": os.cpu_count() or 1, "GPU": 0}, plan.resources.cpus, 0))
    steps = f"training of {space.longest} steps" if trains(experiment) else ""
    grid = f"evaluation of {_grid_text(experiment)}" if evaluates(experiment) else ""
    size = f"{plan.workers} workers with {plan.resources} each" if plan.nested else str(plan.resources)
    at_once = "as many as there are GPUs for" if plan.resources.gpus else f"{here} on the CPUs of this machine"
    lines = [
        f"sweep {experiment.name}: {plan.sweep.planned} trials, by {settings.search}, scheduler {settings.scheduler}",
        *(f"  {name}: {_axis_text(axis)}" for name, axis in plan.sweep.axes.items()),
        f"  space: {space.points or 'infinitely many'} points",
        f"  objectives: {', '.join(f'{o.metric} ({o.mode})' for o in settings.objectives)}",
        f"  a trial: {' and '.join(filter(None, (steps, grid)))}; {size}",
        f"  at once: {at_once}, at most {settings.max_concurrent or plan.sweep.planned}",
        f"  stored: {len(stored)} trials, {sum(trial.status == FAILED for trial in stored)} of them failed",
        f"  results: {plan.folder.path}",
    ]
    return "\n".join(lines)


def sync_sweep(experiment: Experiment) -> int:
    """Draw and publish what is stored of the spec's sweep; 1 when some trials failed or MLflow did not take it.

    Raises UserError when nothing is stored.
    """
    plan = plan_sweep(experiment)
    if not plan.folder.exists:
        raise UserError("Nothing is stored of this sweep yet. Run `python jobs/sweep.py SPEC` first.")
    sweep = plan.folder.read()
    where = _finish(experiment, sweep)
    return int(where is None or bool(_failed(sweep)))


def _run(
    plan: SweepPlan, ledger: Ledger, origin: Mapping[str, Any], address: str | None, check: Callable[[], None]
) -> None:
    """`check` raises when the sweep is no longer ours."""
    from indexmem.sweep.tune_run import report_winners, run_sweep

    experiment, size = plan.space.experiment, plan.resources
    progress, sink = SweepProgress(plan.space.longest if trains(experiment) else 0), MlflowSink.open(experiment)
    published = time.monotonic()
    view = ProgressView.open(f"{experiment.name} sweep")

    def watch(sweep: Sweep) -> None:
        nonlocal published
        check()
        view(progress.status(sweep))
        if sink is not None and time.monotonic() - published > PUBLISH_SECONDS:
            sink.publish_sweep(experiment, sweep, last=False)
            published = time.monotonic()

    with view, ray_cluster(address):
        wait_for_nodes(plan.workers, size.cpus, size.gpus, experiment.run.wait_for_nodes, say)
        if ledger.left:
            run_sweep(plan, ledger, origin, watch)
        if winners := len(ledger.sweep.unreported):
            check()
            say(f"evaluating the best of {len(ledger.sweep.trials)} trials ({winners}) on samples that chose none")
            report_winners(plan, ledger, origin, say)


def _finish(experiment: Experiment, sweep: Sweep) -> str | None:
    """Draw, publish and print; where MLflow has it, if it does."""
    reports = run_root(experiment) / "reports"
    page = write_sweep_report(sweep, reports)
    best = write_best_spec(experiment, sweep, page)
    files = {path.name: path for path in (page, page.with_suffix(".csv"))}
    sink = MlflowSink.open(experiment)
    where = None if sink is None else sink.publish_sweep(experiment, sweep, files)
    for trial in sweep.winners:
        print(sweep.describe(trial))
        print("  " + " ".join(f"'{name}={json.dumps(value)}'" for name, value in trial.params.items()))
    if sweep.tie_text:
        print(sweep.tie_text)
    if best is not None:
        print(f"Best as a spec: {best}  (for `indexmem eval`, which finds its rows, `indexmem distill`, or a night)")
    if failed := _failed(sweep):
        print(f"{len(failed)} trials failed, the last one: {failed[-1].error}. The same command tries them again.")
    if sweep.unreported:
        print("Scores above are of the samples that chose the winners. The same command evaluates them on fresh ones.")
    elif sweep.repeated:
        print(f"Not fresh: {', '.join(sweep.repeated)} has samples that chose the winners, whatever the seed.")
    if len(sweep.trials) < sweep.planned:
        print(f"There are no more than {len(sweep.trials)} different trials.")
    print(f"Sweep: {page}")
    if where is not None:
        print(f"MLflow: {where}  (look with `make ui` or `indexmem ui`)")
    return where


def _failed(sweep: Sweep) -> list[Trial]:
    return [trial for trial in sweep.trials if trial.status == FAILED]


def _grid_text(experiment: Experiment) -> str:
    grid = experiment.grid
    methods = ", ".join(method.label for method in grid.methods)
    budgets = ", ".join(map(str, grid.requested))
    return f"{methods} at {budgets} on {grid.samples} samples of each benchmark"


def _axis_text(axis: Any) -> str:
    if isinstance(axis, list):
        return ", ".join(map(str, axis))
    return f"{axis['low']} to {axis['high']}" + (", logarithmic" if axis["log"] else "")
