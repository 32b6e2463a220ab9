"""What a grid's run carries besides numbers: the report, the verdict, links."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from mlflow_reading import client, rows, sink, spec
from report_rows import MIXED, make_rows

from indexmem.commands.report import mirror_grid, verdict_text
from indexmem.report.verdict import verdict
from indexmem.results.schema import FAILED
from indexmem.results.summary import summarise
from indexmem.tracking.links import LOCAL_UI, grid_links
from indexmem.tracking.mlflow_runs import NOTE_TAG


def artifacts(root: Path, run_id: str) -> Path:
    return Path(client(root).get_run(run_id).info.artifact_uri.removeprefix("file://"))


def test_the_run_has_the_report_with_its_numbers_and_tells_the_verdict(root: Path) -> None:
    experiment, grid = spec(root), make_rows(samples=6)
    report = root / "grid-test.html"
    report.write_text("<p>report</p>")
    (root / "grid-test").mkdir()
    (root / "grid-test" / "scores.csv").write_text("mean")
    run_id = mirror_grid(sink(experiment), experiment, grid, report)
    assert run_id is not None
    folder = artifacts(root, run_id)
    assert (folder / "grid-test.html").read_text() == "<p>report</p>"
    assert (folder / "grid-test" / "scores.csv").read_text() == "mean"
    note = client(root).get_run(run_id).data.tags[NOTE_TAG]
    assert "`#samples&method=indexmem&budget=90%25`" in note, "what to type behind the report's address"
    assert note.startswith(f"**{verdict(summarise(grid)).headline}**\n\n[Report grid-test.html](#/experiments/")


def test_a_report_that_is_not_there_is_not_linked(root: Path) -> None:
    experiment = spec(root)
    run_id = mirror_grid(sink(experiment), experiment, rows(), root / "missing.html")
    assert run_id is not None
    assert "missing" not in client(root).get_run(run_id).data.tags[NOTE_TAG]


@pytest.mark.parametrize(
    "grid",
    [make_rows(budgets=MIXED, samples=2), make_rows((), samples=2), rows(samples=1, status=FAILED, score=None)],
    ids=["kinds of budgets", "full cache alone", "all failed"],
)
def test_any_grid_has_a_verdict(grid: pa.Table) -> None:
    assert verdict_text(verdict(summarise(grid))).startswith("**")


def test_a_report_links_to_the_run_before_that_is_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = spec(root)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": {"job_submission_id": "night 1"}}))
    assert grid_links(experiment, rows()).keys() == {"MLflow run"}  # nothing tells where the job's page is
    monkeypatch.setenv("INDEXMEM_RAY_DASHBOARD", "http://ray.internal:8265/")
    links = grid_links(experiment, rows())
    run_id = sink(experiment).publish_grid(experiment, rows())
    run = client(root).get_run(run_id)
    place = f"#/experiments/{run.info.experiment_id}/runs/{run_id}?workflowType=machine_learning"
    assert links == {
        "MLflow run": f"{LOCAL_UI}/{place}",
        "Ray job night 1": "http://ray.internal:8265/#/jobs/night%201",
    }
    assert f"[Ray job night 1]({links['Ray job night 1']})" in run.data.tags[NOTE_TAG]
    assert run.data.tags["mlflow.source.git.commit"] == "abc"


def test_without_tracking_there_is_nothing_to_link(tmp_path: Path) -> None:
    assert grid_links(spec(tmp_path, tracking={"enabled": False}), rows()) == {}
    with pytest.warns(RuntimeWarning, match="did not take"):
        assert grid_links(spec(tmp_path, tracking={"uri": "http://127.0.0.1:9"}), rows()) == {}
