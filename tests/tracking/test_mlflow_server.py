"""A real MLflow server, on SQLite and on PostgreSQL: rows are published once, whatever happens to the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow_reading import rows, sink, spec, used_models
from mlflow_server import postgres, serving

from indexmem.config.schema import Experiment
from indexmem.tracking.distill_runs import Checkpoint
from indexmem.tracking.grid_runs import CELL_TAG

HISTORY = [{"step": step, "loss": 1.0 / (step + 1)} for step in range(20)]
CELL_IDS = ["knorm/niah", "knorm/vt", "snapkv(window=64)/niah", "snapkv(window=64)/vt"]
WEIGHTS = "a" * 16


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    return Checkpoint(tmp_path / "final", {"indexer": WEIGHTS})


def on(uri: str, folder: Path) -> Experiment:
    return spec(folder, tracking={"uri": uri, "experiment": "team"})


def sync(experiment: Experiment, checkpoint: Checkpoint) -> str | None:
    """Everything that is on disk, as a process of its own would publish it."""
    opened = sink(experiment)
    opened.publish_distill(experiment, "d1", HISTORY, checkpoint=checkpoint, finished=True)
    return opened.publish_grid(experiment, rows(checkpoint=WEIGHTS))


def check_all_is_there_once(uri: str) -> None:
    client = MlflowClient(uri)

    def runs(kind: str) -> list[Run]:
        return list(client.search_runs([client.get_experiment_by_name(f"team/{kind}").experiment_id]))

    grid = runs("eval")
    assert sorted(run.data.tags[CELL_TAG] for run in grid if CELL_TAG in run.data.tags) == CELL_IDS
    assert {run.info.status for run in grid} == {"FINISHED"}
    assert all(len(used_models(client, run)) == 1 for run in grid)
    (parent,) = [run for run in grid if CELL_TAG not in run.data.tags]
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["spec.yaml"]
    (training,) = runs("distill")
    steps = [point.step for point in client.get_metric_history(training.info.run_id, "loss")]
    assert steps == list(range(20))
    (output,) = training.outputs.model_outputs
    assert [file.path for file in client.list_logged_model_artifacts(output.model_id)] == ["config.json"]


def test_a_server_that_dies_takes_no_rows_with_it(tmp_path: Path, checkpoint: Checkpoint) -> None:
    with serving(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path) as server:
        experiment = on(server.uri, tmp_path)
        opened = sink(experiment)
        url = opened.publish_grid(experiment, rows(checkpoint=WEIGHTS).slice(0, 6))  # two of the four cells
        opened.publish_distill(experiment, "d1", HISTORY[:5])
        assert url is not None
        assert url.startswith(f"{server.uri}/#/experiments/")

        server.stop()
        with pytest.warns(RuntimeWarning, match="indexmem sync"):
            assert opened.publish_grid(experiment, rows(checkpoint=WEIGHTS)) is None
        with pytest.warns(RuntimeWarning, match="indexmem sync"):
            assert opened.publish_distill(experiment, "d1", HISTORY, finished=True) is None

        server.start()
        assert sync(experiment, checkpoint) == url
        assert sync(experiment, checkpoint) == url
        check_all_is_there_once(server.uri)


def test_a_server_on_postgres_holds_the_same(tmp_path: Path, checkpoint: Checkpoint) -> None:
    with postgres() as database, serving(database, tmp_path) as server:
        experiment = on(server.uri, tmp_path)
        assert sync(experiment, checkpoint) == sync(experiment, checkpoint)
        check_all_is_there_once(server.uri)
