"""Every search of dashboards/mlflow.md finds something in a real store, and not everything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlflow import MlflowClient
from mlflow_reading import client, new_root, sink, spec
from report_rows import make_rows

from indexmem.config.budget import Budget
from indexmem.tracking.grid_runs import CELL_TAG

GUIDE = (Path(__file__).parents[2] / "dashboards" / "mlflow.md").read_text(encoding="utf-8")
SEARCHES = re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", GUIDE.partition("## Searches")[2].partition("## ")[0], re.M)
BUDGETS, BENCHMARKS = tuple(map(Budget.of_ratio, (0.75, 0.9))), ("niah_single_1", "niah_single_2")
BUILD = "c1f3a90be2d74568"
OTHER = {"git_commit": "0000000", "benchmark_build": "another", "kv_bytes": 2**30, "length": 1024}
RUNS = (1 + 2 + 3 * 4) + (1 + 2 + 4)
OF_CELLS = [question for question, _ in SEARCHES if "cell" in question or "memory" in question or "column" in question]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> MlflowClient:
    """Two grids: one as in the guide, one of another spec, job, commit and data."""
    root = new_root(tmp_path_factory.mktemp("recipes") / "run", empty_database)
    methods = ("indexmem", "indexer", "knorm")
    with pytest.MonkeyPatch.context() as patch:
        for name, rows, settings in (
            ("paper-ruler", changed(make_rows(methods, BUDGETS, BENCHMARKS), {"benchmark_build": BUILD}), {}),
            ("other", changed(make_rows(methods[2:], BUDGETS, BENCHMARKS, 4), OTHER), {"length": 1024}),
        ):
            job = {"metadata": {"job_submission_id": f"{name.rpartition('-')[2]}-1"}}
            patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
            experiment = spec(root, name=name, grid=settings)
            sink(experiment).publish_grid(experiment, rows)
    return client(root)


@pytest.fixture(scope="module")
def place(store: MlflowClient) -> list[str]:
    return [store.get_experiment_by_name("indexmem/eval").experiment_id]


def changed(rows: pa.Table, changes: Mapping[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([row | changes for row in rows.to_pylist()], schema=rows.schema)


def test_the_guide_has_searches() -> None:
    assert len(SEARCHES) >= 12


@pytest.mark.parametrize(("question", "search"), SEARCHES, ids=[question for question, _ in SEARCHES])
def test_a_search_of_the_guide_answers_its_question(
    store: MlflowClient, place: list[str], question: str, search: str
) -> None:
    found = store.search_runs(place, search, max_results=1000)
    assert 0 < len(found) < RUNS
    assert {run.data.tags["spec"] for run in found} >= {"paper-ruler"}
    if question in OF_CELLS:
        assert all(CELL_TAG in run.data.tags for run in found)


def test_the_metrics_of_the_guide_are_those_of_cells(store: MlflowClient, place: list[str]) -> None:
    assert len(store.search_runs(place, max_results=1000)) == RUNS
    cell = store.search_runs(place, "tags.method = 'indexmem'", max_results=1)[0]
    table = GUIDE.partition("| metric | is |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(named) == sorted(cell.data.metrics)


def test_the_pictures_of_the_guide_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(\.\./(docs/images/[a-z-]+\.png)\)", GUIDE)
    assert len(pictures) == 2
    for picture in pictures:
        assert (Path(__file__).parents[2] / picture).stat().st_size < 300_000
