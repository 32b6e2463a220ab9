"""Idempotent building blocks on MlflowClient: open a store, find a run by tag or create it, log, attach files.

Nothing here touches MLflow's global state (active run, tracking URI), which belongs to the caller's own script.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, LoggedModelInput, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy import make_url

from indexmem.tracking.naming import MAX_PARAM, MAX_TAG, clip, value_text

SQLITE = "sqlite:///"
PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"  # Markdown that the UI shows
FINGERPRINT_TAG = "indexmem.fingerprint"  # of all that was published; written last
FINISHED = "FINISHED"
TRAINING_VIEW = "workflowType=machine_learning"  # else a new browser opens the UI for chat applications
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # else the UI asks what it is looking at
PAGE = 1000

# Set unless the user set them. MLflow's own defaults wait many minutes for a dead server, which is no way to treat a
# mirror, and print a line per finished run that repeats the credentials of the address.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def sqlite_uri(path: Path) -> str:
    """Address of a database file, whatever characters its path has.

    Quoted is no more than must be: MLflow makes an empty folder of the quoted name beside the real one.
    """
    return SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def connect(uri: str, artifact_root: Path) -> MlflowClient:
    """Client of the store at `uri`; a SQLite file that does not exist is created first.

    HTTP timeouts become short unless the environment already sets them. Raises what MLflow raises.
    """
    if uri.startswith(SQLITE):
        _create_sqlite(Path(make_url(uri).database or ""), artifact_root)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return MlflowClient(tracking_uri=uri)


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

    def find_or_create(self, tag: str, value: str, name: str) -> Run:
        """The oldest run with the tag, so that two writers who both created one agree from then on."""
        return next(self.tagged(tag, value), None) or self.create(name, {tag: value})

    def create(self, name: str, tags: Mapping[str, str]) -> Run:
        return self.client.create_run(self.experiment_id, tags=dict(tags), run_name=name)

    def log(
        self,
        run: Run,
        metrics: Mapping[str, float],
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Metrics (finite) at step 0, params that the run lacks (they are immutable), then tags, in that order."""
        now = _now()
        fresh = {key: value for key, value in (params or {}).items() if key not in run.data.params}
        self.client.log_batch(
            run.info.run_id,
            metrics=[Metric(key, value, now, 0) for key, value in metrics.items()],
            params=[Param(key, clip(value_text(value), MAX_PARAM)) for key, value in fresh.items()],
        )
        self.tag(run.info.run_id, tags or {})

    def log_points(self, run_id: str, points: Sequence[tuple[str, int, float]]) -> None:
        """Metric points (name, step, finite value)."""
        now = _now()
        self.client.log_batch(run_id, metrics=[Metric(key, value, now, step) for key, step, value in points])

    def log_model_score(self, run_id: str, model_id: str, dataset: Dataset, score: float, at: int) -> None:
        """The run's metric 'score' as one of the logged model on this data set.

        Points of equal value and time `at` (ms since 1970) are one point, however often they are sent.
        """
        point = Metric("score", score, at, 0, model_id, dataset.name, dataset.digest)
        self.client.log_batch(run_id, metrics=[point])

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.client.log_batch(run_id, tags=[RunTag(key, clip(text, MAX_TAG)) for key, text in tags.items()])

    def attach(
        self,
        run_id: str,
        files: Mapping[str, Path],
        texts: Mapping[str, str] | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> None:
        """Upload files or folders, texts and bytes under these artifact paths; what is there already is replaced."""
        with tempfile.TemporaryDirectory() as folder:
            for name, source in files.items():
                target = _below(Path(folder), name)
                if source.is_dir():
                    shutil.copytree(source, target)
                else:
                    shutil.copy(source, target)
            for name, text in (texts or {}).items():
                _below(Path(folder), name).write_text(text, encoding="utf-8")
            for name, content in (blobs or {}).items():
                _below(Path(folder), name).write_bytes(content)
            self.client.log_artifacts(run_id, folder)

    def inputs(self, run_id: str, datasets: Sequence[DatasetInput], models: Sequence[str] = ()) -> None:
        """Data and logged models (ids) that the run used; those that it has already are not doubled."""
        used = [LoggedModelInput(model) for model in models]
        try:
            self.client.log_inputs(run_id, datasets=list(datasets), models=used)
        except MlflowException:
            # MLflow looks for a data set and then creates it: of two drivers that do so at once, one fails. Then it
            # is there.
            self.client.log_inputs(run_id, datasets=list(datasets), models=used)

    def url(self, run_id: str) -> str:
        """Address of the run in the UI of a server, without credentials; the run id for a bare database."""
        uri = self.client.tracking_uri
        return f"{public(uri).rstrip('/')}/{self.place(run_id)}" if is_server(uri) else run_id

    def place(self, run_id: str, artifact: str | None = None) -> str:
        """Where the UI shows the run or one of its artifacts, from the UI's own root."""
        below = f"/artifacts/{artifact}" if artifact else ""
        return f"#/experiments/{self.experiment_id}/runs/{run_id}{below}?{TRAINING_VIEW}"


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks"))


def public(text: str) -> str:
    """`text` without the credentials of any address in it."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def _create_sqlite(path: Path, artifact_root: Path) -> None:
    """Make the database beside its final name and link it into place: it appears complete or not at all.

    MLflow's migrations break a new file for good when two processes run them at once, or one is killed in them.
    """
    if path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # a second to import, of no use with a server

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        SqlAlchemyStore(sqlite_uri(temporary), artifact_root.as_uri())._dispose_engine()
        connection = sqlite3.connect(temporary)
        connection.execute("PRAGMA journal_mode=wal")  # persists; readers no longer block the writer
        connection.close()
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, path)
    finally:
        for leftover in path.parent.glob(f"{temporary.name}*"):
            leftover.unlink(missing_ok=True)


def _below(folder: Path, name: str) -> Path:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _now() -> int:
    return int(time.time() * 1000)
