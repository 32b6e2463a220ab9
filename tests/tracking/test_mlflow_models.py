"""A checkpoint as a logged model, and the cells that used it, found by the content of the weights."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import mlflow
import pyarrow as pa
import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus, Run
from mlflow_reading import all_runs, client, rows, sink, spec, used_models

from indexmem.config.schema import Experiment
from indexmem.tracking.distill_runs import Checkpoint
from indexmem.tracking.grid_runs import CELL_TAG
from indexmem.tracking.mlflow_runs import FINGERPRINT_TAG, NOTE_TAG

INDEXER, MEMORY, OTHER = "a" * 16, "b" * 16, "c" * 16
HISTORY = [{"step": 0, "loss": 1.0}]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    folder = tmp_path / "final"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "indexer.safetensors").write_bytes(b"weights")
    return Checkpoint(folder, {"indexer": INDEXER, "memory-indexer": MEMORY})


def train(experiment: Experiment, checkpoint: Checkpoint, distill_id: str = "d1") -> Run:
    run_id = sink(experiment).publish_distill(experiment, distill_id, HISTORY, checkpoint=checkpoint, finished=True)
    return MlflowClient(sink(experiment).uri).get_run(run_id)


def models(root: Path) -> list[LoggedModel]:
    store = client(root)
    return list(store.search_logged_models([store.get_experiment_by_name("indexmem/distill").experiment_id]))


def test_a_finished_training_has_its_checkpoint_as_a_model_once(
    root: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = spec(root)
    sink(experiment).publish_distill(experiment, "d1", HISTORY, checkpoint=checkpoint)
    assert models(root) == []  # still training
    train(experiment, checkpoint)
    run = train(experiment, checkpoint)
    (model,) = models(root)
    assert (model.name, model.source_run_id, model.status) == ("grid-test", run.info.run_id, LoggedModelStatus.READY)
    assert model.params["distill.batch_size"] == "1"
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client(root).tracking_uri)  # the argument of that name is not for models
    folder = mlflow.artifacts.download_artifacts(f"models:/{model.model_id}")
    assert (Path(folder) / "indexer.safetensors").read_bytes() == b"weights"


def test_a_training_whose_name_has_a_dot_is_finished_too(root: Path, checkpoint: Checkpoint) -> None:
    run = train(spec(root, name="lr0.01"), checkpoint)
    (model,) = models(root)
    assert (run.info.run_name, run.info.status, model.name) == ("lr0.01", "FINISHED", "lr0_01")


@pytest.mark.parametrize("cut", ["create_logged_model", "log_model_artifacts", "finalize_logged_model", "log_outputs"])
def test_a_publication_cut_off_anywhere_is_completed(
    root: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    real = getattr(MlflowClient, cut)

    def then_killed(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, cut, then_killed)
        with pytest.raises(KeyboardInterrupt):
            train(spec(root), checkpoint)
    run = train(spec(root), checkpoint)
    (model,) = models(root)
    assert (model.status, run.info.status) == (LoggedModelStatus.READY, "FINISHED")
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert {file.path for file in client(root).list_logged_model_artifacts(model.model_id)} == {
        "config.json", "indexer.safetensors",
    }  # fmt: skip


def test_cells_are_linked_to_the_model_whose_weights_they_used(root: Path, checkpoint: Checkpoint) -> None:
    trained, evaluated = spec(root), spec(root, grid={"samples": 3})  # another spec, with the same weights
    train(trained, checkpoint)
    train(trained, Checkpoint(checkpoint.folder, {"indexer": OTHER}), "d2")
    (model,) = [model for model in models(root) if model.tags["indexmem.distill_id"] == "d1"]
    grid = rows().to_pylist()
    for row in grid:
        row["checkpoint"] = INDEXER + MEMORY if row["method"] == "knorm" else ""
    table = rows().from_pylist(grid, schema=rows().schema)
    parent_id = sink(evaluated).publish_grid(evaluated, table)
    for run in all_runs(root):  # as if each publication had been cut off just before its end
        client(root).delete_tag(run.info.run_id, FINGERPRINT_TAG)
    sink(evaluated).publish_grid(evaluated, table)

    used = {run.data.tags.get(CELL_TAG): used_models(client(root), run) for run in all_runs(root)}
    assert used.pop(None) == [model.model_id]
    assert used == {
        "knorm/niah": [model.model_id], "knorm/vt": [model.model_id], "snapkv(window=64)/niah": [],
        "snapkv(window=64)/vt": [],
    }  # fmt: skip
    scores = client(root).get_logged_model(model.model_id).metrics
    assert sorted((m.key, m.dataset_name, m.value) for m in scores) == [
        ("score", "niah", pytest.approx(1 / 3)),
        ("score", "vt", pytest.approx(1 / 3)),
    ]
    note = client(root).get_run(parent_id).data.tags[NOTE_TAG]
    assert f"#/experiments/{model.experiment_id}/models/{model.model_id}" in note
    assert f"[Training of {model.model_id[:8]}](#/experiments/{model.experiment_id}/runs/{model.source_run_id}?" in note


def test_a_training_names_the_grids_that_used_it_and_says_what_it_trained(root: Path, checkpoint: Checkpoint) -> None:
    experiment = spec(root)
    run = train(experiment, checkpoint)
    alone = run.data.tags[NOTE_TAG]
    assert alone.startswith("Trains indexer for")
    assert "Evaluated by" not in alone
    pages = []
    for other in (experiment, spec(root, name="second", grid={"samples": 3})):
        grid = sink(other).publish_grid(other, rows(checkpoint=INDEXER))
        pages.append(f"[{other.name}](#/experiments/2/runs/{grid}?workflowType=machine_learning)")
    train(experiment, checkpoint)  # published again: the links stay
    note = client(root).get_run(run.info.run_id).data.tags[NOTE_TAG]
    assert note.startswith(alone)
    assert note.count("Evaluated by: ") == 1
    assert all(page in note for page in pages)


def test_durations_are_those_of_the_work_whenever_it_was_published(root: Path, checkpoint: Checkpoint) -> None:
    experiment = spec(root)
    tokens = experiment.distill.sequences_per_step * experiment.distill.length
    history = [{"step": step, "loss": 1.0, "tokens_per_second": tokens / 30} for step in range(4)]
    run_id = sink(experiment).publish_distill(experiment, "d1", history, checkpoint=checkpoint, finished=True)
    training = client(root).get_run(run_id).info
    assert training.end_time - training.start_time == 4 * 30 * 1000
    times = [dt.datetime(2026, 1, 5, 3, minute, tzinfo=dt.UTC) for minute in (0, 30)]
    table = pa.concat_tables([rows(created_at=time, prefill_seconds=60.0) for time in times])
    table = table.set_column(2, "sample_id", pa.array(map(str, range(table.num_rows))))
    for part in (table.slice(0, table.num_rows // 2), table):  # half of it first
        grid = client(root).get_run(sink(experiment).publish_grid(experiment, part)).info
    assert grid.start_time == (times[0].timestamp() - 60) * 1000
    assert grid.end_time == times[1].timestamp() * 1000
    durations = [run.info.end_time - run.info.start_time for run in all_runs(root)]
    assert durations == pytest.approx([31 * 60 * 1000] * len(durations), abs=1000)
    listed = [run.data.tags["method"] for run in all_runs(root) if "method" in run.data.tags]
    assert listed == sorted(listed), "methods stand together, as in the report"


def test_a_training_that_is_published_after_its_grid_is_linked_by_the_next_sync(
    root: Path, checkpoint: Checkpoint
) -> None:
    experiment = spec(root)
    grid = rows(checkpoint=INDEXER)
    sink(experiment).publish_grid(experiment, grid)
    assert [used_models(client(root), run) for run in all_runs(root)] == [[]] * 5
    train(experiment, checkpoint)
    sink(experiment).publish_grid(experiment, grid)
    assert all(len(used_models(client(root), run)) == 1 for run in all_runs(root))
