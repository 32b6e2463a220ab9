"""One trial: train with its settings, evaluate, measure. Where it does so is up to a `Place`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from indexmem.config.schema import Experiment, ModelConfig
from indexmem.config.spec import run_root
from indexmem.distill.runs import DistillRun
from indexmem.eviction.methods.registry import needs_training
from indexmem.locks.leases import hold
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.sweep.evaluation import evaluated_rows
from indexmem.sweep.metrics import MEASURES, grid_metrics
from indexmem.sweep.training import Report, SpanReporter, train_here


@dataclass(frozen=True)
class Outcome:
    """What a finished trial leaves, besides what its training reported."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    distill_id: str = ""
    cell_ids: tuple[str, ...] = ()


class Place(Protocol):
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
        rows, cell_ids = evaluated_rows(spec, _backbone(spec.model), provenance)
        return Outcome(grid_metrics(rows), cell_ids=cell_ids)


def perform(spec: Experiment, place: Place, provenance: Mapping[str, Any], report: Report) -> Outcome:
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
                place.train(spec, run, report_ours)
            else:
                SpanReporter(spec, run, report_ours).update()
    measured = place.evaluate(spec.selecting, provenance) if evaluates(spec) else Outcome()
    return Outcome(measured.metrics, run.id if run is not None else "", measured.cell_ids)


def trains(spec: Experiment) -> bool:
    """Whether trials train: where a loss decides, or the grid evaluates what no checkpoint is named for."""
    losses = any(objective.metric.split("/")[0] not in MEASURES for objective in spec.sweep.objectives)
    learned = any(needs_training(method) for method in spec.grid.methods) and spec.indexer.checkpoint is None
    return losses or spec.sweep.scheduler == "asha" or learned


def evaluates(spec: Experiment) -> bool:
    """Whether trials evaluate: where some objective is measured on the grid."""
    return any(objective.metric.split("/")[0] in MEASURES for objective in spec.sweep.objectives)


@lru_cache(maxsize=1)
def _backbone(model: ModelConfig) -> Backbone:
    """Frozen, so that trials can share it; a process runs one trial after the other."""
    return load_backbone(model)
