"""The runs of one MLflow experiment, published idempotently: found by a tag or created, and sent only what they lack.

A run carries a fingerprint of what was published, written last. Publishing the same again sends nothing; publishing
after an interruption sends the rest.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import DatasetInput, LoggedModelInput, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from indexmem.config.spec import content_hash
from indexmem.tracking.mlflow_store import is_server, public
from indexmem.tracking.naming import MAX_PARAM, MAX_TAG, clip, value_text

PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"  # Markdown that the UI shows
FINGERPRINT_TAG = "indexmem.fingerprint"
FINISHED = "FINISHED"
TRAINING_VIEW = "workflowType=machine_learning"  # else a new browser opens the UI for chat applications
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # else the UI asks what it is looking at
PAGE = 1000  # runs of one answer

Point = tuple[str, int, float]  # name of a metric, step, finite value


@dataclass(frozen=True)
class Runs:
    """The runs of one MLflow experiment."""

    client: MlflowClient
    experiment_id: str

    @classmethod
    def of(cls, client: MlflowClient, experiment: str, artifact_root: Path, note: str = "") -> Runs:
        """Find or create the experiment, described by `note` (Markdown).

        A server decides itself where artifacts go; a bare database cannot.
        """
        location = None if is_server(client.tracking_uri) else artifact_root.as_uri()
        found = client.get_experiment_by_name(experiment)
        if found is None:
            # Another process may be faster; then the experiment is there.
            with suppress(MlflowException):
                return cls(client, client.create_experiment(experiment, location, EXPERIMENT_TAGS | {NOTE_TAG: note}))
            found = client.get_experiment_by_name(experiment)
            assert found is not None, f"experiment {experiment!r} can neither be created nor found"
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return cls(client, found.experiment_id)

    @classmethod
    def existing(cls, client: MlflowClient, experiment: str) -> Runs | None:
        """The runs of the experiment, if there is one."""
        found = client.get_experiment_by_name(experiment)
        return cls(client, found.experiment_id) if found else None

    def tagged(self, tag: str, value: str) -> Iterator[Run]:
        """Runs that are not deleted and carry the tag, oldest first."""
        assert "'" not in value, f"not a tag value to search for: {value!r}"
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], f"tags.`{tag}` = '{value}'", max_results=PAGE, page_token=token,
                order_by=["attributes.start_time ASC"],
            )  # fmt: skip
            yield from page
            token = page.token
            if not token:
                return

    def find_or_create(self, tag: str, value: str, name: str, began: int | None = None) -> Run:
        """The oldest run with the tag, so that two writers who both created one agree from then on.

        A new one is called `name`, or has the value behind it where a run of this name is there already.
        """
        if (found := next(self.tagged(tag, value), None)) is not None:
            return found
        taken = self.client.search_runs([self.experiment_id], f"attributes.run_name = '{name}'", max_results=1)
        return self.create(f"{name}-{value[:6]}" if taken else name, {tag: value}, began)

    def create(self, name: str, tags: Mapping[str, str], began: int | None = None) -> Run:
        """`began`: when its work did, ms since 1970; by default now."""
        return self.client.create_run(self.experiment_id, began, dict(tags), name)

    def publish(
        self,
        run: Run,
        decided_by: Any,
        metrics: Mapping[str, float],
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Metrics (finite) at step 0, params that the run lacks (they are immutable) and tags, in that order.

        `before` sends what else belongs to the run. Nothing is sent when `decided_by` is what it was last time.
        """
        fingerprint = content_hash(decided_by)
        if run.data.tags.get(FINGERPRINT_TAG) == fingerprint:
            return
        before()
        now = _now()
        fresh = {name: value for name, value in params.items() if name not in run.data.params}
        self.client.log_batch(
            run.info.run_id,
            metrics=[Metric(name, value, now, 0) for name, value in metrics.items()],
            params=[Param(name, clip(value_text(value), MAX_PARAM)) for name, value in fresh.items()],
        )
        self.tag(run, {**tags, FINGERPRINT_TAG: fingerprint})

    def log_points(self, run: Run, points: Sequence[Point]) -> None:
        now = _now()
        if points:
            metrics = [Metric(name, value, now, step) for name, step, value in points]
            self.client.log_batch(run.info.run_id, metrics=metrics)

    def extend(self, run: Run, points: Sequence[Point]) -> None:
        """Log the points beyond the last step of each metric that the run has. `points` ascend by step, so a batch that
        was cut off has sent the first steps of each metric.
        """
        last = {metric.key: metric.step for metric in run.data.to_proto().metrics}
        self.log_points(run, [(name, step, value) for name, step, value in points if step > last.get(name, -1)])

    def tag(self, run: Run, tags: Mapping[str, str]) -> None:
        texts = [RunTag(key, clip(text, MAX_TAG)) for key, text in tags.items()]
        self.client.log_batch(run.info.run_id, tags=texts)

    def end(self, run: Run, status: str = FINISHED, at: int | None = None) -> None:
        """Set the status at which the run's work has ended, and when (ms since 1970; by default now)."""
        if run.info.status != status or at not in (None, run.info.end_time):
            self.client.set_terminated(run.info.run_id, status, at)

    def go_on(self, run: Run) -> None:
        """Say that the run's work is under way."""
        if run.info.status != "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")

    def attach(self, run: Run, files: Mapping[str, Path], texts: Mapping[str, str] | None = None) -> None:
        """Upload files or folders, and texts, under these artifact paths; what is there already is replaced.

        The last part of a file's artifact path is its own name.
        """
        for name, text in (texts or {}).items():
            self.client.log_text(run.info.run_id, text, name)
        for name, source in files.items():
            assert posixpath.basename(name) == source.name, f"{source} cannot become {name}"
            self.client.log_artifact(run.info.run_id, str(source), posixpath.dirname(name) or None)

    def inputs(self, run: Run, datasets: Sequence[DatasetInput], models: Sequence[str] = ()) -> None:
        """Data and logged models (ids) that the run used; those that it has already are not doubled."""
        used = [LoggedModelInput(model) for model in models]
        try:
            self.client.log_inputs(run.info.run_id, datasets=list(datasets), models=used)
        except MlflowException:
            # MLflow looks for a data set and then creates it: of two drivers that do so at once, one fails. Then it
            # is there.
            self.client.log_inputs(run.info.run_id, datasets=list(datasets), models=used)

    def url(self, run: Run) -> str:
        """Address of the run in the UI of a server, without credentials; the run id for a bare database."""
        uri = self.client.tracking_uri
        return f"{public(uri).rstrip('/')}/{self.page(run)}" if is_server(uri) else str(run.info.run_id)

    def page(self, run: Run, artifact: str | None = None) -> str:
        """Where the UI shows the run or one of its artifacts, from the UI's own root."""
        below = f"/artifacts/{artifact}" if artifact else ""
        return f"#/experiments/{self.experiment_id}/runs/{run.info.run_id}{below}?{TRAINING_VIEW}"


def _now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
