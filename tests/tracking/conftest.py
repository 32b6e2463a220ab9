"""A fresh MLflow store for each test: migrated once, copied from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow_reading import new_root

from indexmem.tracking.mlflow_store import MLFLOW_SETTINGS, open_store


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store; creating one takes seconds, copying it milliseconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    open_store(f"sqlite:///{path}", path.parent / "artifacts")
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MLFLOW_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.delenv("INDEXMEM_RAY_DASHBOARD", raising=False)


@pytest.fixture
def root(tmp_path: Path, empty_database: Path) -> Path:
    return new_root(tmp_path / "run", empty_database)
