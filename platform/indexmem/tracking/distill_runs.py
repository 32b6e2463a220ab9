"""A training in MLflow: one run, with its metrics by step and the checkpoint as a logged model."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash, flatten
from indexmem.tracking.grid_runs import SPEC_TAG
from indexmem.tracking.mlflow_runs import FINISHED, Runs
from indexmem.tracking.models import Checkpoint, publish_model
from indexmem.tracking.naming import metric_name
from indexmem.tracking.provenance import provenance
from indexmem.tracking.published import common_tags, published_spec

DISTILL_TAG = "indexmem.distill_id"
NON_FINITE_TAG = "indexmem.non_finite"
SENDER_TAG = "indexmem.sender"
TRAINED_SECTIONS = {"model", "indexer", "memory", "target", "distill"}  # of the spec, that shape the weights
DISTILL_NOTE = """\
One run per training, with losses by step. What came of it is the run's logged model: a folder that
`IndexMemPress.from_pretrained` loads, and from which one gets to the cells that used it.
"""


@dataclass
class OpenTraining:
    """What MLflow already has of a training run, so that a call during training sends only what is new."""

    run_id: str
    sender: str  # who opened the run last; another process may since have sent steps that we do not know of
    steps: dict[str, set[int]]  # of each metric


def open_training(runs: Runs, experiment: Experiment, distill_id: str, params: Mapping[str, Any]) -> OpenTraining:
    """Find or create the training run, mark it running, and read which steps it has."""
    spec = published_spec(experiment)
    run = runs.find_or_create(DISTILL_TAG, distill_id, experiment.name)
    tags = common_tags(experiment, "distill", [provenance()["git_commit"]]) | {"model": experiment.model.id}
    sender = uuid.uuid4().hex
    runs.log(run, {}, flatten(spec) | dict(params), tags | {SPEC_TAG: content_hash(spec), SENDER_TAG: sender})
    if run.info.status != "RUNNING":
        runs.client.update_run(run.info.run_id, status="RUNNING")
    # A batch may have been cut off between two metrics of one step, so each metric is asked for its own steps.
    history = {name: runs.client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return OpenTraining(
        run.info.run_id, sender, {name: {point.step for point in points} for name, points in history.items()}
    )


def sent_last(runs: Runs, known: OpenTraining) -> bool:
    """Whether nobody else has opened the run since, so that `known` is all that it has."""
    return runs.client.get_run(known.run_id).data.tags.get(SENDER_TAG) == known.sender


def send_points(runs: Runs, known: OpenTraining, points: Mapping[tuple[str, int], float]) -> None:
    """Log the finite points that MLflow lacks; name the others in a tag."""
    fresh = [
        (name, step, value)
        for (name, step), value in points.items()
        if math.isfinite(value) and step not in known.steps.get(name, ())
    ]
    if fresh:
        runs.log_points(known.run_id, fresh)
    for name, step, _ in fresh:
        known.steps.setdefault(name, set()).add(step)
    lost = [f"{name}@{step}" for (name, step), value in points.items() if not math.isfinite(value)]
    if lost:
        runs.tag(known.run_id, {NON_FINITE_TAG: ", ".join(lost)})


def finish_training(
    runs: Runs, known: OpenTraining, experiment: Experiment, distill_id: str, checkpoint: Checkpoint | None
) -> None:
    """Make the checkpoint a logged model, then end the run."""
    if checkpoint is not None:
        run = runs.client.get_run(known.run_id)
        params = flatten(experiment.model_dump(mode="json", include=TRAINED_SECTIONS))
        publish_model(runs, run, experiment.name, checkpoint, (DISTILL_TAG, distill_id), params)
    runs.client.set_terminated(known.run_id, FINISHED)


def points_of(history: Sequence[Mapping[str, float]]) -> dict[tuple[str, int], float]:
    """(metric name, step) -> value; of a step that occurs twice, the later row counts."""
    return {
        (metric_name(name), int(row["step"])): float(value)
        for row in history
        for name, value in row.items()
        if name != "step"
    }
