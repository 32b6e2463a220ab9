"""One trial: train with its settings, evaluate, measure. Where it does so is up to a `TrialRunner`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import pyarrow.compute as pc

from indexmem.config.schema import Experiment, ModelConfig
from indexmem.config.spec import run_root
from indexmem.distill.runs import DistillRun
from indexmem.evaluate.grid import plan
from indexmem.evaluate.local import evaluate_here
from indexmem.evaluate.settings import trains_first
from indexmem.locks.leases import hold
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.results.schema import OK
from indexmem.results.sweeps import Spread
from indexmem.sweep.metrics import GRID_MEASURES, grid_means, grid_spreads
from indexmem.sweep.training import Report, SpanReporter, train_here


@dataclass(frozen=True)
class Outcome:
    """What a finished trial leaves, besides what its training reported."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    distill_id: str = ""
    cell_ids: tuple[str, ...] = ()
    spread: Mapping[str, Spread] = field(default_factory=dict)


class TrialRunner(Protocol):
    """Where a trial trains and evaluates."""

    def train(self, spec: Experiment, run: DistillRun, report: Report) -> None:
        """Train to the end and publish the run."""

    def evaluate(self, spec: Experiment, provenance: Mapping[str, Any]) -> Outcome:
        """Evaluate the spec's grid. Raises RuntimeError when rows failed."""


class InProcess:
    """Here, with a model that trials of this process share."""

    def train(self, spec: Experiment, run: DistillRun, report: Report) -> None:
        train_here(spec, run, _backbone(spec.model), report)

    def evaluate(self, spec: Experiment, provenance: Mapping[str, Any]) -> Outcome:
        """Through the cells and into the store of every grid; what is stored already is not evaluated again."""
        grid = plan(spec)
        for _ in evaluate_here(spec, grid, provenance, _backbone(spec.model)):
            pass
        rows = grid.rows()
        failed = rows.filter(pc.not_equal(rows["status"], OK))
        if failed.num_rows:
            reason = f"{failed['error_class'][0].as_py()}: {failed['error_message'][0].as_py()}"
            raise RuntimeError(f"{failed.num_rows} of {rows.num_rows} rows failed, the first with {reason}")
        return Outcome(grid_means(rows), cell_ids=grid.cell_ids, spread=grid_spreads(rows, spec.sweep.objectives))


def perform(spec: Experiment, runner: TrialRunner, provenance: Mapping[str, Any], report: Report) -> Outcome:
    """Do what is not done yet, and report on all of the training. Raises whatever goes wrong in it, and UserError when
    somebody else has taken the training over.
    """
    run = DistillRun.of(spec) if trains(spec) else None
    if run is not None:
        # Trials that differ only in how they evict share a training: one does it, the others wait and find it done.
        with hold(run_root(spec) / "leases", f"distill-{run.id}", wait=lambda lease: None) as leases:

            def report_ours(distill_id: str, row: Mapping[str, float]) -> None:
                leases.check()
                report(distill_id, row)

            if not run.finished:
                runner.train(spec, run, report_ours)
            else:
                SpanReporter(spec, run, report_ours).update()
    measured = runner.evaluate(spec.selecting, provenance) if evaluates(spec) else Outcome()
    return replace(measured, distill_id=run.id if run is not None else "")


def trains(spec: Experiment) -> bool:
    """Whether trials train: where a loss decides, or the grid evaluates what no checkpoint is named for."""
    losses = any(objective.metric.split("/")[0] not in GRID_MEASURES for objective in spec.sweep.objectives)
    return losses or spec.sweep.scheduler == "asha" or trains_first(spec)


def evaluates(spec: Experiment) -> bool:
    """Whether trials evaluate: where some objective is measured on the grid."""
    return any(objective.metric.split("/")[0] in GRID_MEASURES for objective in spec.sweep.objectives)


@lru_cache(maxsize=1)
def _backbone(model: ModelConfig) -> Backbone:
    """Frozen, so that trials can share it; a process runs one trial after the other."""
    return load_backbone(model)
