"""Several drivers on one SQLite file: no failed write, every cell once."""

from __future__ import annotations

import multiprocessing
import warnings
from collections import Counter
from pathlib import Path

import pyarrow as pa
from mlflow_reading import all_runs, sink, spec
from report_rows import make_rows

from indexmem.config.budget import Budget
from indexmem.tracking.grid_runs import CELL_TAG

SPECS = ("one", "other")


def wide_grid() -> pa.Table:
    """4 methods x 7 budgets x 2 benchmarks and the full cache: 58 cells."""
    budgets = [Budget.of_ratio(share / 10) for share in range(2, 9)]
    return make_rows(("indexmem", "indexer", "snapkv", "knorm"), budgets, ("niah", "vt"), samples=2, failures=0)


def drive(root: Path, name: str) -> None:
    """One driver: fails when MLflow does not take all of its grid."""
    warnings.simplefilter("error", RuntimeWarning)
    experiment = spec(root, name=name)
    assert sink(experiment).publish_grid(experiment, wide_grid()) is not None


def test_two_wide_grids_are_published_into_one_file_at_once(tmp_path: Path) -> None:
    """The file does not exist when both start."""
    fork = multiprocessing.get_context("fork")  # importing MLflow anew in each would take longer than the test
    drivers = [fork.Process(target=drive, args=(tmp_path, name)) for name in SPECS]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(timeout=240)
    assert [driver.exitcode for driver in drivers] == [0, 0]

    runs = all_runs(tmp_path)
    cells = Counter((run.data.tags["spec"], run.data.tags.get(CELL_TAG)) for run in runs)
    assert set(cells.values()) == {1}
    assert Counter(name for name, _ in cells) == dict.fromkeys(SPECS, 58 + 1)
    assert {run.info.status for run in runs} == {"FINISHED"}
