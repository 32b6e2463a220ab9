"""Ray Tune: trials of a sweep on a cluster.

Tune decides what runs where and when, and what is ended early. What a sweep has done is in the ledger, so nothing of
Tune's own state is kept: a driver that is started again makes a new Tune run of what the ledger lacks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.search import Searcher

from indexmem.cluster.connection import room
from indexmem.config.load import with_settings
from indexmem.config.schema import Experiment
from indexmem.config.spec import as_said
from indexmem.errors import UserError
from indexmem.results.sweeps import RUNNING, Sweep
from indexmem.sweep.asha import make_scheduler
from indexmem.sweep.ledger import Ledger
from indexmem.sweep.nested import OnWorkers, evaluation_task
from indexmem.sweep.plan import Resources, SweepPlan
from indexmem.sweep.trial import InProcess, perform

# Tune's own records are of no use here, and Ctrl-C ends the driver as it ends every other command.
ENVIRONMENT = MappingProxyType(
    {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    }
)


# A trial that directs workers must take none of what they need, and something it must take.
DIRECTING = MappingProxyType({"memory": 2**20})
PROGRESS_SECONDS = 0.5


def run_sweep(
    plan: SweepPlan, ledger: Ledger, provenance: Mapping[str, Any], on_progress: Callable[[Sweep], None]
) -> None:
    """Run what the ledger lacks; needs a connection to Ray. Returns when every trial has ended or failed.

    `on_progress` is called about twice a second and at the end. Raises UserError when no trial fits the cluster.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    settings, spec = plan.space.experiment.sweep, plan.space.experiment
    concurrency = plan.concurrency(room(plan.resources.cpus, plan.resources.gpus))
    if not concurrency:
        total = ray.cluster_resources()
        raise UserError(
            f"A trial needs {plan.workers} x {plan.resources}, which this cluster does not have "
            f"({total.get('CPU', 0):g} CPU, {total.get('GPU', 0):g} GPU). Lower distill.workers, or add nodes."
        )
    files = plan.folder.path / "tune"
    trainable = tune.with_parameters(_trial, spec=as_said(spec), provenance=dict(provenance), nested=plan.nested)
    size: dict[str, float] = (
        dict(DIRECTING) if plan.nested else {"CPU": plan.resources.cpus, "GPU": plan.resources.gpus}
    )
    try:
        # Not a Tuner: it would pickle all it is given, to restore it later.
        tune.run(
            tune.with_resources(trainable, tune.PlacementGroupFactory([size])),
            num_samples=ledger.left,
            search_alg=LedgerSearch(ledger),
            scheduler=make_scheduler(settings, plan.space.longest, ledger.sweep.trials),
            max_concurrent_trials=concurrency,
            max_failures=settings.max_failures,
            callbacks=[LedgerCallback(ledger, on_progress)],
            storage_path=str(files),
            reuse_actors=not plan.nested,  # trials of a process share its loaded model
            raise_on_failed_trial=False,
            verbose=0,
        )
    finally:
        shutil.rmtree(files, ignore_errors=True)
    on_progress(ledger.sweep)


def report_winners(plan: SweepPlan, ledger: Ledger, provenance: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Evaluate the winners that lack it on the spec's own samples, which chose no trial; needs Ray.

    A failed evaluation is reported through `say`; the next run of the command tries it again.
    """
    spec, winners = plan.space.experiment, ledger.sweep.unreported
    size = Resources(spec.grid.cpus_per_actor, spec.grid.gpus_per_actor) if plan.nested else plan.resources
    tasks = [evaluation_task(plan.space.spec(trial.params), provenance, size.cpus, size.gpus) for trial in winners]
    for trial, task in zip(winners, tasks):
        try:
            outcome = ray.get(task)
            ledger.report_fresh(trial.id, outcome.metrics, outcome.cell_ids, outcome.spread)
        except ray.exceptions.RayError as error:
            say(f"trial {trial.number} was not evaluated on fresh samples: {error}")


class LedgerSearch(Searcher):
    """Asks the ledger for the next trial."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Settings of a trial that is on disk when they are returned; FINISHED at the end."""
        trial = self._ledger.next()
        finished: Any = Searcher.FINISHED
        return finished if trial is None else {"id": trial.id, "params": dict(trial.params)}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Nothing: results reach the ledger through the callback."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the state is the ledger's."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing."""


class LedgerCallback(tune.Callback):
    """Enters what happens to trials into the ledger."""

    def __init__(self, ledger: Ledger, on_progress: Callable[[Sweep], None]) -> None:
        self._ledger, self._on_progress, self._next = ledger, on_progress, float("-inf")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ledger.begin_work(trial.config["id"])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        name = trial.config["id"]
        if "row" in result:
            self._ledger.report(name, result["row"], result["distill_id"])
        elif "error" in result:
            self._ledger.fail(name, result["error"])
        elif "outcome" in result:
            self._ledger.complete(name, **result["outcome"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = trial.config["id"]
        if self._ledger.status(name) == RUNNING:  # the scheduler has ended it: it has neither an outcome nor an error
            self._ledger.stop(name)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ledger.fail(trial.config["id"], f"its process was lost too often: {trial.get_error()}")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_SECONDS
            self._on_progress(self._ledger.sweep)


def _trial(config: Mapping[str, Any], spec: Any, provenance: Mapping[str, Any], nested: bool) -> None:
    """What a process of Tune does for a trial. A mistake in it is a result; a lost process is for Tune to replace."""
    experiment = with_settings(Experiment.model_validate(spec), config["params"], "trial")
    steps = experiment.distill.schedule.steps
    torch.set_num_threads(max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))))

    def report(distill_id: str, row: Mapping[str, float]) -> None:
        # Without a step at the top the scheduler does not judge: what is trained is also evaluated.
        judged = dict(row) if row["step"] < steps else {}
        tune.report(judged | {"row": dict(row), "distill_id": distill_id})

    try:
        outcome = perform(experiment, OnWorkers() if nested else InProcess(), provenance, report)
    except torch.AcceleratorError:
        raise  # after a device error nothing works in this process
    except Exception as error:
        tune.report({"error": f"{type(error).__name__}: {error}"[:2000]})
    else:
        tune.report({"outcome": vars(outcome)})
