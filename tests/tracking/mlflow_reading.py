"""Specs, rows and a reader of MLflow, for the tests of publishing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import Run

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.results.schema import OK, ROW_SCHEMA
from indexmem.tracking.mlflow_sink import MlflowSink


def new_root(folder: Path, database: Path) -> Path:
    folder.mkdir()
    shutil.copy(database, folder / "mlflow.db")
    return folder


def spec(root: Path, **sections: Any) -> Experiment:
    return validate({"name": "grid-test", "run": {"root": str(root)}, **sections}, "test")


def sink(experiment: Experiment) -> MlflowSink:
    opened = MlflowSink.open(experiment)
    assert opened is not None
    return opened


def client(root: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")


def rows(samples: int = 3, **values: Any) -> pa.Table:
    """A grid of 2 methods x 1 ratio x 2 benchmarks."""
    cells = [(method, benchmark) for method in ("snapkv(window=64)", "knorm") for benchmark in ("niah", "vt")]
    found = [
        {
            "cell_id": f"{method}/{benchmark}",
            "sample_id": f"{benchmark}/{index}",
            "repeat": 0,
            "model": "tiny",
            "method": method,
            "method_params": "{}",
            "checkpoint": "",
            "budget": "50%",
            "ratio": 0.5,
            "benchmark": benchmark,
            "benchmark_build": "b" * 64,
            "length": 4096,
            "score": float(index % 2),
            "status": OK,
            "kv_bytes": 1000,
            "git_commit": "abc",
            **values,
        }
        for method, benchmark in cells
        for index in range(samples)
    ]
    return pa.Table.from_pylist(found, schema=ROW_SCHEMA)


def all_runs(root: Path, experiment: str = "indexmem/eval") -> list[Run]:
    store = client(root)
    found = store.get_experiment_by_name(experiment)
    return list(store.search_runs([found.experiment_id])) if found else []


def used_models(store: MlflowClient, run: Run) -> list[str]:
    """Ids of the logged models that the run used, which a search of runs leaves out."""
    return [model.model_id for model in store.get_run(run.info.run_id).inputs.model_inputs]


def points(root: Path, run_id: str, metric: str) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in client(root).get_metric_history(run_id, metric))
