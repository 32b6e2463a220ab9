"""A training in this process alone, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.distill.history import History
from indexmem.distill.loop import STATE, LocalContext, distill
from indexmem.distill.runs import DistillRun
from indexmem.models.backbone import Backbone


class _WatchedHistory(History):
    """Tells of every row that is written."""

    def __init__(self, folder: Path, span: int, watch: Callable[[Sequence[dict[str, Any]]], None]) -> None:
        super().__init__(folder, span)
        self._watch = watch

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        super().write(rows)
        self._watch(rows)


def distill_here(
    experiment: Experiment,
    run: DistillRun,
    watch: Callable[[Sequence[dict[str, Any]]], None] = lambda rows: None,
    backbone: Backbone | None = None,
) -> None:
    """Train `run`, or go on from its last checkpoint; nothing to do where it is finished.

    `distill.workers` is the number of sequences that a step sees for each of the batch, as on a cluster; here one
    process computes them in turn. `watch` is called with the metrics of new steps. `backbone`: the spec's model, if it
    is loaded already.
    """
    if run.finished:
        return
    context = LocalContext(run.folder / "alone")
    context.folder.mkdir(parents=True, exist_ok=True)
    history = _WatchedHistory(run.history, experiment.distill.checkpoint_every, watch)
    distill(experiment, context, history, backbone)
    newest = context.restore()
    assert newest is not None, "training ends with a checkpoint"
    run.finish(newest, leave_out=(STATE,))
