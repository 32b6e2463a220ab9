"""Trained modules as MLflow logged models, and which of them a grid's cells used.

A logged model is one checkpoint folder, of an indexer and its memories. Cells name modules by the content hash of their
weights, so the link holds wherever the folder was copied to, and for every spec that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Run

from indexmem.tracking.mlflow_runs import NOTE_TAG, TRAINING_VIEW, Runs
from indexmem.tracking.naming import MAX_PARAM, clip, model_name, value_text

MODEL_TYPE = "indexmem"
WEIGHTS_TAG = "indexmem.weights."  # followed by the content hash of a module; the value is the module's name
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


def publish_model(
    runs: Runs, run: Run, name: str, checkpoint: Checkpoint, identity: tuple[str, str], params: Mapping[str, Any]
) -> str:
    """Find the logged model with the tag `identity` or make it the output of `run`; returns its id.

    An interrupted publication is completed by the next.
    """
    model = _tagged(runs, *identity)
    if model is None:
        model = runs.client.create_logged_model(
            runs.experiment_id,
            name=model_name(name),
            source_run_id=run.info.run_id,
            tags=dict([identity])
            | {WEIGHTS_TAG + weights: module for module, weights in checkpoint.modules.items()}
            | {NOTE_TAG: MODEL_NOTE.format(modules=", ".join(checkpoint.modules))},
            params={key: clip(value_text(value), MAX_PARAM) for key, value in params.items()},
            model_type=MODEL_TYPE,
        )
    if model.status != LoggedModelStatus.READY:
        runs.client.log_model_artifacts(model.model_id, str(checkpoint.folder))
        runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    outputs = run.outputs.model_outputs if run.outputs else []
    if model.model_id not in {output.model_id for output in outputs}:
        runs.client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, 0)])
    return model.model_id


def models_with(runs: Runs | None, weights: Iterable[str]) -> dict[str, LoggedModel]:
    """Content hash -> the logged model that holds these weights, for those that `runs` has."""
    if runs is None:
        return {}
    found = {digest: _tagged(runs, WEIGHTS_TAG + digest) for digest in sorted(set(weights))}
    return {digest: model for digest, model in found.items() if model is not None}


def model_links(models: Iterable[LoggedModel]) -> dict[str, str]:
    """Text -> address within the UI, which shows a run only the models of its own experiment."""
    pages = {model.model_id: f"#/experiments/{model.experiment_id}/models/{model.model_id}" for model in models}
    return {f"Trained modules {name[:8]}": f"{page}?{TRAINING_VIEW}" for name, page in sorted(pages.items())}


def _tagged(runs: Runs, tag: str, value: str | None = None) -> LoggedModel | None:
    """The oldest model with the tag, and with this value of it."""
    condition = "!= ''" if value is None else f"= '{value}'"
    found = runs.client.search_logged_models(
        [runs.experiment_id],
        f"tags.`{tag}` {condition}",
        max_results=1,
        order_by=[{"field_name": "creation_timestamp", "ascending": True}],
    )
    return next(iter(found), None)
