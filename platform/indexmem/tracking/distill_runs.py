"""A training in MLflow: one run with its metrics by step, and its checkpoint as a logged model.

A logged model is one checkpoint folder, of an indexer and its memories. Cells name modules by the content hash of their
weights, so the link holds wherever the folder was copied to, and for every spec that uses it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Run

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash, flatten
from indexmem.provenance import provenance
from indexmem.tracking.mlflow_runs import NOTE_TAG, TRAINING_VIEW, Runs
from indexmem.tracking.naming import MAX_PARAM, clip, metric_name, model_name, value_text
from indexmem.tracking.note import link_line
from indexmem.tracking.run_tags import common_tags, published_spec

DISTILL_TAG, SPEC_TAG = "indexmem.distill_id", "indexmem.spec_id"
NON_FINITE_TAG = "indexmem.non_finite"
USED = "\nEvaluated by: "
USED_TAG = "indexmem.used_by."  # followed by a grid's run id; the value is the grid's name and page
WEIGHTS_TAG = "indexmem.weights."  # followed by the content hash of a module; the value is the module's name
MODEL_TYPE = "indexmem"
TRAINED_SECTIONS = {"model", "indexer", "memory", "target", "distill"}  # of the spec, that shape the weights
DISTILL_NOTE = """\
One run per training, with losses by step. What came of it is the run's logged model: a folder that
`IndexMemPress.from_pretrained` loads, and from which one gets to the cells that used it.
"""
TRAINING_NOTE = """\
Trains {modules} for {model}: {steps} steps of {sequences} sequences of {length} tokens. The losses are under *Model
metrics*; the trained modules are this run's logged model.
"""
MODEL_NOTE = """\
Trained modules: {modules}. The metrics below are of the cells that used them. To use them elsewhere:

    folder = mlflow.artifacts.download_artifacts("models:/<model id>")
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.5)
"""


@dataclass(frozen=True)
class Checkpoint:
    """A folder of trained modules: name -> content hash of the weights, as cells record it."""

    folder: Path
    modules: Mapping[str, str]


def send_training(
    runs: Runs,
    experiment: Experiment,
    distill_id: str,
    history: Sequence[Mapping[str, float]],
    params: Mapping[str, Any],
) -> Run:
    """Find or create the training's run, mark it running, and log the steps that it lacks."""
    spec = published_spec(experiment)
    began = int(time.time() * 1000) - work_ms(experiment, history)
    run = runs.find_or_create(DISTILL_TAG, distill_id, experiment.name, began)
    tags = common_tags(experiment, "distill", [provenance()["git_commit"]])
    tags |= {"model": experiment.model.id, SPEC_TAG: content_hash(spec)}
    tags[NOTE_TAG] = _training_note(experiment) + _used_by(run.data.tags)
    runs.publish(run, tags, {}, flatten(spec) | dict(params), tags)
    runs.go_on(run)
    rows = {int(row["step"]): row for row in history}  # of a step that occurs twice, the later row counts
    points = [
        (metric_name(name), step, float(value))
        for step, row in sorted(rows.items())
        for name, value in row.items()
        if name != "step"
    ]
    runs.extend(run, [point for point in points if math.isfinite(point[2])])
    lost = [f"{name}@{step}" for name, step, value in points if not math.isfinite(value)]
    if lost:
        runs.tag(run, {NON_FINITE_TAG: ", ".join(lost)})
    return run


def work_ms(experiment: Experiment, history: Sequence[Mapping[str, float]]) -> int:
    """What the steps took, without loading and without pauses between two runs of one training."""
    tokens = experiment.distill.sequences_per_step * experiment.distill.length
    return int(1000 * sum(tokens / speed for row in history if (speed := row.get("tokens_per_second"))))


def name_grid(trainings: Runs, models: Iterable[LoggedModel], grid: str, page: str) -> None:
    """Have the notes of the models' trainings name a grid that used them: its run id, its name and page."""
    for run_id in {model.source_run_id for model in models if model.source_run_id}:
        run = trainings.client.get_run(run_id)
        if run.data.tags.get(USED_TAG + grid) != page:
            note = run.data.tags.get(NOTE_TAG, "").partition(USED)[0]
            used = _used_by({**run.data.tags, USED_TAG + grid: page})
            trainings.tag(run, {USED_TAG + grid: page, NOTE_TAG: note + used})


def publish_checkpoint(
    runs: Runs, run_id: str, experiment: Experiment, distill_id: str, checkpoint: Checkpoint
) -> None:
    """Make the checkpoint a logged model that is the run's output. An interrupted publication is completed."""
    model = _model_tagged(runs, DISTILL_TAG, distill_id)
    if model is None:
        weights = {WEIGHTS_TAG + digest: module for module, digest in checkpoint.modules.items()}
        note = MODEL_NOTE.format(modules=", ".join(checkpoint.modules))
        params = flatten(experiment.model_dump(mode="json", include=TRAINED_SECTIONS))
        model = runs.client.create_logged_model(
            runs.experiment_id,
            name=model_name(experiment.name),
            source_run_id=run_id,
            tags={DISTILL_TAG: distill_id, NOTE_TAG: note} | weights,
            params={key: clip(value_text(value), MAX_PARAM) for key, value in params.items()},
            model_type=MODEL_TYPE,
        )
    if model.status != LoggedModelStatus.READY:
        runs.client.log_model_artifacts(model.model_id, str(checkpoint.folder))
        runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    outputs = runs.client.get_run(run_id).outputs
    if model.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else [])}:
        runs.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])


def models_with(runs: Runs | None, weights: Iterable[str]) -> dict[str, LoggedModel]:
    """Content hash -> the logged model that holds these weights, for those that `runs` has."""
    if runs is None:
        return {}
    found = {digest: _model_tagged(runs, WEIGHTS_TAG + digest) for digest in sorted(set(weights))}
    return {digest: model for digest, model in found.items() if model is not None}


def model_links(models: Iterable[LoggedModel]) -> dict[str, str]:
    """Text -> address within the UI, of each model and of its training: a run's page shows only models of its own
    experiment.
    """
    found = {}
    for model in sorted(models, key=lambda model: str(model.model_id)):
        place = f"#/experiments/{model.experiment_id}"
        found[f"Trained modules {model.model_id[:8]}"] = f"{place}/models/{model.model_id}?{TRAINING_VIEW}"
        if model.source_run_id:
            found[f"Training of {model.model_id[:8]}"] = f"{place}/runs/{model.source_run_id}?{TRAINING_VIEW}"
    return found


def _training_note(experiment: Experiment) -> str:
    config = experiment.distill
    return TRAINING_NOTE.format(
        modules=" and ".join(config.modules),
        model=experiment.model.id,
        steps=config.schedule.steps,
        sequences=config.sequences_per_step,
        length=config.length,
    )


def _used_by(tags: Mapping[str, str]) -> str:
    pages = [tags[tag].rpartition(" ") for tag in sorted(tags) if tag.startswith(USED_TAG)]
    return f"{USED}{link_line({name: page for name, _, page in pages})}" if pages else ""


def _model_tagged(runs: Runs, tag: str, value: str | None = None) -> LoggedModel | None:
    """The oldest model with the tag, and with this value of it."""
    condition = "!= ''" if value is None else f"= '{value}'"
    found = runs.client.search_logged_models(
        [runs.experiment_id],
        f"tags.`{tag}` {condition}",
        max_results=1,
        order_by=[{"field_name": "creation_timestamp", "ascending": True}],
    )
    return next(iter(found), None)
