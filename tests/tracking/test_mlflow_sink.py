"""Which MLflow store a spec publishes to, how it is created, and what happens when it does not answer."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow_reading import all_runs, new_root, rows, sink, spec

from indexmem.errors import UserError
from indexmem.tracking.mlflow_runs import Runs
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import MLFLOW_SETTINGS, open_store


def test_a_dead_server_only_warns_and_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MLFLOW_SETTINGS:
        os.environ.pop(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    experiment = spec(tmp_path, tracking={"uri": "http://user:hunter2@127.0.0.1:9"})
    started = time.monotonic()
    opened = sink(experiment)
    with pytest.warns(RuntimeWarning, match="indexmem sync") as caught:
        assert opened.publish_grid(experiment, rows()) is None
    assert "hunter2" not in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened.publish_distill(experiment, "d1", [{"step": 0, "loss": 1.0}]) is None  # does not wait again
    with pytest.warns(RuntimeWarning, match="did not take"):
        assert opened.publish_distill(experiment, "d1", [{"step": 0, "loss": 1.0}], finished=True) is None
    assert time.monotonic() - started < 10
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"  # the user's choice
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == MLFLOW_SETTINGS["MLFLOW_HTTP_REQUEST_TIMEOUT"]


def test_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MlflowSink.open(spec(tmp_path, tracking={"enabled": False})) is None
    assert sink(spec(tmp_path)).uri == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert sink(spec(tmp_path)).uri == "http://tracking:5000"
    assert sink(spec(tmp_path, tracking={"uri": "sqlite:////a/b.db"})).uri == "sqlite:////a/b.db"
    for folder in ("file:///data/mlruns", "./mlruns"):
        with pytest.raises(UserError, match="database or a server"):
            MlflowSink.open(spec(tmp_path, tracking={"uri": folder}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a%41b", "a?b", "a#b", "a b", "ä%20"])
def test_a_root_of_any_name_has_its_database(tmp_path: Path, empty_database: Path, name: str) -> None:
    root = new_root(tmp_path / name, empty_database)
    opened = sink(spec(root))
    run_id = opened.publish_distill(spec(root), "d1", [{"step": 0, "loss": 1.0}], finished=True)
    assert run_id is not None
    found = sqlite3.connect(root / "mlflow.db").execute("SELECT run_uuid FROM runs").fetchall()
    assert found == [(run_id,)]
    assert list(tmp_path.rglob("*.db")) == [root / "mlflow.db"]


def create_one_run(root: Path) -> None:
    opened = open_store(f"sqlite:///{root / 'mlflow.db'}", root / "artifacts")
    Runs.of(opened, "together", root / "artifacts").create("run", {})


def test_processes_may_create_the_database_at_once(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")  # importing MLflow anew in each would take longer than the test
    processes = [fork.Process(target=create_one_run, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(all_runs(tmp_path, "together")) == 3
    assert sqlite3.connect(tmp_path / "mlflow.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_database_that_appears_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "mlflow.db"

    class SlowStore:
        def __init__(self, uri: str, artifacts: str) -> None:
            if not database.exists():
                Path(uri.removeprefix("sqlite:///")).touch()
                database.write_bytes(b"made by a faster process")

        def _dispose_engine(self) -> None:
            pass

    monkeypatch.setattr("mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore", SlowStore)
    open_store(f"sqlite:///{database}", tmp_path / "artifacts")
    assert list(tmp_path.iterdir()) == [database]
    assert database.read_bytes() == b"made by a faster process"


def test_an_interrupted_creation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate_halfway(self: Any, uri: str, artifacts: str) -> None:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half a database")
        raise KeyboardInterrupt

    monkeypatch.setattr(SqlAlchemyStore, "__init__", migrate_halfway)
    with pytest.raises(KeyboardInterrupt):
        open_store(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts")
    assert list(tmp_path.iterdir()) == []
