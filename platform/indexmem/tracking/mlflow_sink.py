"""Publishes results to MLflow. Results live on disk; MLflow is a mirror that can be brought up to date at any time.

Each thing that is published has a tag by which it is found again, and a fingerprint tag that is written last. So
publishing twice changes nothing, and publishing after an interruption completes what was begun.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Run

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash, flatten, run_root
from indexmem.errors import UserError
from indexmem.tracking.mlflow_runs import PARENT_TAG, Runs, connect, public
from indexmem.tracking.naming import metric_name
from indexmem.tracking.provenance import provenance
from indexmem.tracking.summary import CellSummary, overall_metrics, score_note, summarise

SPEC_TAG, CELL_TAG, DISTILL_TAG = "indexmem.spec_id", "indexmem.cell_id", "indexmem.distill_id"
FINGERPRINT_TAG = "indexmem.fingerprint"
NON_FINITE_TAG = "indexmem.non_finite"
NOTE_TAG = "mlflow.note.content"
FINISHED = "FINISHED"
PAUSE_SECONDS = 300.0  # after a failure a training run does not wait for the server again before this


@dataclass
class _Distill:
    """What MLflow already has of a training run, so that a call during training sends only what is new."""

    run_id: str
    steps: dict[str, set[int]]  # of each metric


class MlflowSink:
    """Where a spec's results are mirrored. No method raises because MLflow is down: it warns and returns None."""

    def __init__(self, uri: str, root: Path) -> None:
        self.uri = uri
        self._artifact_root = root / "artifacts"
        self._distills: dict[str, _Distill] = {}
        self._paused_until = -math.inf

    @classmethod
    def open(cls, experiment: Experiment) -> MlflowSink | None:
        """The spec's store: `tracking.uri`, else MLFLOW_TRACKING_URI, else SQLite in the run root. None when disabled.

        Connects only when something is published. Raises UserError for a folder, which MLflow 3 no longer supports.
        """
        if not experiment.tracking.enabled:
            return None
        root = run_root(experiment)
        uri = experiment.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
        if (uri.startswith("file:") or ":" not in uri) and not os.environ.get("MLFLOW_ALLOW_FILE_STORE"):
            raise UserError(
                f"MLflow 3 cannot track into the folder '{uri}'. Use a database or a server, for example "
                "tracking.uri=sqlite:////data/mlflow.db or tracking.uri=http://localhost:5000"
            )
        return cls(uri, root)

    def publish_grid(
        self, experiment: Experiment, rows: pa.Table, artifacts: Mapping[str, Path] | None = None, note: str = ""
    ) -> str | None:
        """Mirror a grid: one run per spec, with one child run per cell of `rows` (ROW_SCHEMA, one row per key).

        `artifacts` maps paths inside the run to files or folders; `note` is the Markdown shown on the run (default: a
        table of scores). Cells that have not changed cost nothing. Returns the run's URL on a server, else its id.
        """
        cells = summarise(rows)
        with self._mirroring():
            runs = Runs.of(self._client(), f"{experiment.tracking.experiment}/eval", self._artifact_root)
            return _publish_grid(runs, experiment, cells, artifacts or {}, note)
        return None

    def publish_distill(
        self,
        experiment: Experiment,
        distill_id: str,
        history: Sequence[Mapping[str, float]],
        *,
        artifacts: Mapping[str, Path] | None = None,
        finished: bool = False,
        params: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Mirror a training run, as often as wanted: `history` holds mappings of 'step' and metrics.

        Steps that MLflow has are not sent again, so the whole history, its tail, or the overlap of a resumed run all
        give each step once. Values that are not finite are not plotted but listed in the tag indexmem.non_finite.
        While the server is down, calls return at once for a few minutes, except the one with `finished`.
        """
        if time.monotonic() < self._paused_until and not finished:
            return None
        points = _points(history)
        with self._mirroring():
            runs = Runs.of(self._client(), f"{experiment.tracking.experiment}/distill", self._artifact_root)
            # Taken out while sending: after an interruption the next call asks MLflow again what it has.
            known = self._distills.pop(distill_id, None) or _open_distill(runs, experiment, distill_id, params or {})
            _send_points(runs, known, points)
            if artifacts:
                runs.attach(known.run_id, artifacts)
            if finished:
                runs.client.set_terminated(known.run_id, FINISHED)
            self._distills[distill_id] = known
            return runs.url(known.run_id)
        return None

    def _client(self) -> MlflowClient:
        return connect(self.uri, self._artifact_root)

    @contextmanager
    def _mirroring(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever goes wrong in the mirror, the results are on disk
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            cause = public(" ".join(str(error).split()))[:300]
            warnings.warn(
                f"MLflow at {public(self.uri)} did not take the results ({type(error).__name__}: {cause}). "
                "Nothing is lost: they are on disk, and `indexmem sync SPEC` publishes them later.",
                RuntimeWarning,
                stacklevel=4,
            )


def _publish_grid(
    runs: Runs, experiment: Experiment, cells: Sequence[CellSummary], artifacts: Mapping[str, Path], text: str
) -> str:
    spec = _published_spec(experiment)
    parent = runs.find_or_create(SPEC_TAG, content_hash(spec), experiment.name)
    parent_id = parent.info.run_id
    children: dict[str, Run] = {}
    for run in runs.tagged(PARENT_TAG, parent_id):
        children.setdefault(run.data.tags.get(CELL_TAG, ""), run)
    for cell in cells:
        _publish_cell(runs, experiment, cell, parent_id, children.get(cell.cell_id))

    metrics = overall_metrics(cells)
    tags = _common_tags(experiment) | {
        "git_commit": ",".join(sorted({cell.git_commit for cell in cells} - {""})),
        NOTE_TAG: text or score_note(experiment.name, cells),
    }
    fingerprint = content_hash([metrics, tags])
    if parent.data.tags.get(FINGERPRINT_TAG) != fingerprint:
        runs.inputs(parent_id, _datasets(cells))
        runs.log(parent, metrics, flatten(spec), tags | {FINGERPRINT_TAG: fingerprint})
    runs.attach(parent_id, artifacts, {"spec.yaml": yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)})
    runs.client.set_terminated(parent_id, FINISHED)
    return runs.url(parent_id)


def _publish_cell(runs: Runs, experiment: Experiment, cell: CellSummary, parent_id: str, run: Run | None) -> None:
    names = ("method", "budget", "ratio", "benchmark", "model")  # no ratio where none was requested
    grouping = {name: str(cell.identity[name]) for name in names if cell.identity[name] is not None}
    tags = _common_tags(experiment) | grouping | {"git_commit": cell.git_commit}
    params = flatten(_published_spec(experiment)) | cell.identity
    fingerprint = content_hash([cell.metrics, params, cell.git_commit])
    if run is not None and run.info.status == FINISHED and run.data.tags.get(FINGERPRINT_TAG) == fingerprint:
        return
    name = f"{cell.identity['method']} {cell.budget} {cell.identity['benchmark']}"
    run = run or runs.create(name, {PARENT_TAG: parent_id, CELL_TAG: cell.cell_id})
    runs.log(run, cell.metrics, params, tags | {FINGERPRINT_TAG: fingerprint})
    runs.client.set_terminated(run.info.run_id, FINISHED)


def _open_distill(runs: Runs, experiment: Experiment, distill_id: str, params: Mapping[str, Any]) -> _Distill:
    """Find or create the training run, mark it running, and read which steps it has."""
    spec = _published_spec(experiment)
    run = runs.find_or_create(DISTILL_TAG, distill_id, experiment.name)
    tags = _common_tags(experiment) | {"model": experiment.model.id, "git_commit": provenance()["git_commit"]}
    runs.log(run, {}, flatten(spec) | dict(params), tags | {SPEC_TAG: content_hash(spec)})
    if run.info.status != "RUNNING":
        runs.client.update_run(run.info.run_id, status="RUNNING")
    # A batch may have been cut off between two metrics of one step, so each metric is asked for its own steps.
    history = {name: runs.client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return _Distill(run.info.run_id, {name: {point.step for point in points} for name, points in history.items()})


def _points(history: Sequence[Mapping[str, float]]) -> dict[tuple[str, int], float]:
    """(metric name, step) -> value; of a step that occurs twice, the later row counts."""
    return {
        (metric_name(name), int(row["step"])): float(value)
        for row in history
        for name, value in row.items()
        if name != "step"
    }


def _send_points(runs: Runs, known: _Distill, points: Mapping[tuple[str, int], float]) -> None:
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


def _published_spec(experiment: Experiment) -> dict[str, Any]:
    """The spec without where results go: that changes no result, and an address may carry credentials."""
    return experiment.model_dump(mode="json", exclude={"tracking", "run"})


def _common_tags(experiment: Experiment) -> dict[str, str]:
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    submission = job.get("metadata", {}).get("job_submission_id")
    return {"spec": experiment.name} | ({"ray.submission_id": submission} if submission else {})


def _datasets(cells: Sequence[CellSummary]) -> list[DatasetInput]:
    builds = sorted({(cell.identity["benchmark"], cell.identity["benchmark_build"]) for cell in cells})
    source = json.dumps({"tags": {"generator": "indexmem.benchmarks"}})
    return [
        DatasetInput(Dataset(name, build[:36], "code", source), [InputTag("mlflow.data.context", "eval")])
        for name, build in builds
    ]
