"""Publishing a grid to a real SQLite MLflow: idempotent, and repairable after any interruption."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from mlflow import MlflowClient
from mlflow_reading import all_runs, client, new_root, points, rows, sink, spec

from indexmem.config.load import validate
from indexmem.results.schema import FAILED
from indexmem.tracking.grid_runs import CELL_TAG
from indexmem.tracking.mlflow_runs import FINGERPRINT_TAG, NOTE_TAG, PARENT_TAG
from indexmem.tracking.run_tags import published_params

WRITES = (
    "create_experiment",
    "create_run",
    "log_batch",
    "log_inputs",
    "log_text",
    "log_artifact",
    "set_terminated",
    "update_run",
)


def content(root: Path) -> dict[str, Any]:
    """Everything that a reader of the UI can tell apart, without ids and times."""
    runs = all_runs(root)
    names = {run.info.run_id: run.info.run_name for run in runs}
    shown = {}
    for run in runs:
        tags = {key: without_ids(value, names) for key, value in run.data.tags.items() if key != FINGERPRINT_TAG}
        assert FINGERPRINT_TAG in run.data.tags
        key = run.data.tags.get(CELL_TAG, "parent")
        assert key not in shown, f"two runs for {key}"
        inputs = [item.dataset.name for item in run.inputs.dataset_inputs]
        shown[key] = (run.info.status, run.data.params, run.data.metrics, tags, inputs)
    return shown


def without_ids(text: str, names: dict[str, str]) -> str:
    """`text` with the name of each run in place of its id."""
    for run_id, name in names.items():
        text = text.replace(run_id, name)
    return text


def test_a_grid_becomes_a_parent_with_one_child_per_cell(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"metadata": {"job_submission_id": "nightly-1"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    report = root / "report.html"
    report.write_text("<p>scores</p>")
    experiment = spec(root, grid={"samples": 3}, tracking={"experiment": "team"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        run_id = sink(experiment).publish_grid(experiment, rows(), {"report/report.html": report})
    store = client(root)
    parent = store.get_run(run_id)
    children = [run for run in all_runs(root, "team/eval") if run.data.tags.get(PARENT_TAG) == run_id]

    assert len(children) == 4
    child = next(run for run in children if run.data.tags[CELL_TAG] == "snapkv(window=64)/niah")
    assert child.info.status == parent.info.status == "FINISHED"
    assert child.data.params["grid.samples"] == "3"
    assert child.data.params["method"] == "snapkv(window=64)"
    assert child.data.metrics["score"] == pytest.approx(1 / 3)
    assert child.data.metrics["rows/ok"] == 3
    expected_tags = {"spec": "grid-test", "method": "snapkv(window=64)", "budget": "50%", "benchmark": "niah"}
    assert (expected_tags | {"ratio": "0.5", "model": "tiny", "git_commit": "abc"}).items() <= child.data.tags.items()
    assert child.data.tags["ray.submission_id"] == "nightly-1"
    assert child.data.tags["grid.protocol"] == parent.data.tags["grid.protocol"] == "agnostic"

    assert parent.data.metrics["score/snapkv_window_64/r0.50"] == pytest.approx(1 / 3)
    assert "| knorm |" in parent.data.tags[NOTE_TAG]
    assert sorted(item.dataset.name for item in parent.inputs.dataset_inputs) == ["niah", "vt"]
    artifacts = Path(parent.info.artifact_uri.removeprefix("file://"))
    assert root / "artifacts" in artifacts.parents
    assert (artifacts / "report" / "report.html").read_text() == "<p>scores</p>"
    assert validate(yaml.safe_load((artifacts / "spec.yaml").read_text()), "artifact").grid == experiment.grid


def test_publishing_twice_changes_nothing(root: Path) -> None:
    experiment = spec(root)
    first = sink(experiment).publish_grid(experiment, rows())
    before, ends = (
        content(root),
        {run.info.run_id: run.info.end_time for run in all_runs(root) if run.info.run_id != first},
    )
    assert sink(experiment).publish_grid(experiment, rows()) == first
    assert content(root) == before
    assert {run.info.run_id: run.info.end_time for run in all_runs(root) if run.info.run_id != first} == ends
    for run in all_runs(root):
        for metric in run.data.metrics:
            assert len(points(root, run.info.run_id, metric)) == 1


def test_new_rows_update_only_their_cell(root: Path) -> None:
    experiment = spec(root)
    opened = sink(experiment)
    opened.publish_grid(experiment, rows(samples=2, status=FAILED, score=None))
    assert content(root)["knorm/vt"][2] == {"rows/ok": 0, "rows/failed": 2}
    opened.publish_grid(experiment, rows(samples=2))
    before = content(root)
    grown = pa.concat_tables([rows(samples=2), rows(samples=5).slice(2, 3)])  # three more for the first cell
    opened.publish_grid(experiment, grown)
    after = content(root)
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"snapkv(window=64)/niah", "parent"}
    assert after["snapkv(window=64)/niah"][2]["rows/ok"] == 5


def test_an_interruption_anywhere_is_repaired_by_the_next_publish(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = new_root(tmp_path / "clean", empty_database)
    grid = rows().slice(0, 6)  # two cells
    sink(spec(clean)).publish_grid(spec(clean), grid)
    expected = content(clean)
    interrupted_at = 0
    while True:
        interrupted_at += 1
        folder = new_root(tmp_path / str(interrupted_at), empty_database)
        with monkeypatch.context() as patch:
            calls = interrupt_after(patch, interrupted_at)
            try:
                sink(spec(folder)).publish_grid(spec(folder), grid)
                break
            except KeyboardInterrupt:
                assert len(calls) == interrupted_at
        sink(spec(folder)).publish_grid(spec(folder), grid)
        assert content(folder) == expected, f"interrupted after call {interrupted_at}: {calls[-1]}"
    assert interrupted_at > 2 * 4


def interrupt_after(patch: pytest.MonkeyPatch, count: int) -> list[str]:
    """The `count`-th write reaches MLflow, and then Ctrl-C arrives."""
    calls: list[str] = []

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            calls.append(name)
            if len(calls) == count:
                raise KeyboardInterrupt
            return result

        return call

    for name in WRITES:
        patch.setattr(MlflowClient, name, counted(name, getattr(MlflowClient, name)))
    return calls


def test_what_a_user_deleted_in_the_ui_comes_back(root: Path) -> None:
    experiment = spec(root)
    opened = sink(experiment)
    first = opened.publish_grid(experiment, rows())
    before = content(root)
    child = next(run for run in all_runs(root) if CELL_TAG in run.data.tags)
    client(root).delete_run(child.info.run_id)
    assert opened.publish_grid(experiment, rows()) == first
    assert content(root) == before


def test_a_deleted_experiment_is_restored_with_its_runs(root: Path) -> None:
    experiment = spec(root)
    opened = sink(experiment)
    first = opened.publish_grid(experiment, rows())
    before = content(root)
    client(root).delete_experiment(client(root).get_experiment_by_name("indexmem/eval").experiment_id)
    assert opened.publish_grid(experiment, rows()) == first
    assert content(root) == before


def test_another_place_or_store_is_the_same_spec_and_other_settings_are_not(root: Path) -> None:
    experiment = spec(root)
    first = sink(experiment).publish_grid(experiment, rows())
    moved = spec(root, tracking={"uri": f"sqlite:///{root / 'mlflow.db'}"})
    assert sink(moved).publish_grid(moved, rows()) == first
    other = spec(root, grid={"samples": 7})
    second = sink(other).publish_grid(other, rows())
    assert second != first
    names = {run.info.run_id: run.info.run_name for run in all_runs(root, "indexmem/eval")}
    assert names[first] == experiment.name
    assert names[second].startswith(f"{experiment.name}-"), "two lines of a list that say the same tell nobody which"


def test_long_settings_and_notes_are_cut_visibly(root: Path) -> None:
    experiment = spec(root, distill={"texts": [f"a/very/long/folder/name/{i:04d}" for i in range(300)]})
    run_id = sink(experiment).publish_grid(experiment, rows(), verdict="n" * 9000)
    run = client(root).get_run(run_id)
    assert len(run.data.params["distill.texts"]) == 6000
    assert "characters, sha256" in run.data.params["distill.texts"]
    assert " characters, sha256 " in run.data.tags[NOTE_TAG]
    assert len(run.data.tags[NOTE_TAG]) == 8000


def test_a_budget_that_is_no_share_names_the_run_and_has_no_ratio(root: Path) -> None:
    experiment = spec(root)
    sink(experiment).publish_grid(experiment, rows(budget="8 MiB", ratio=None))
    child = next(run for run in all_runs(root) if run.data.tags.get(CELL_TAG) == "knorm/vt")
    assert child.info.run_name == "knorm 8 MiB vt"
    assert child.data.tags["budget"] == child.data.params["budget"] == "8 MiB"
    assert "ratio" not in child.data.tags


def test_parameters_do_not_claim_defaults_of_a_checkpoint() -> None:
    params = published_params(validate({"indexer": {"checkpoint": "testbed-modules", "scope": "kv_head"}}, "test"))
    assert params["indexer.scope"] == "kv_head" and params["grid.samples"] == 20
    assert "indexer.token_term" not in params
    assert "indexer.token_term" in published_params(validate({}, "test"))
