"""The tables of docs/kernels.md are those of the stored files."""

import json
from pathlib import Path

import pytest
from kernel_tables import table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["kernel-reread", "step-twice"])
def test_the_page_shows_what_was_measured(name):
    measured = json.loads((ROOT / "docs" / "results" / "bench" / f"{name}.json").read_text())
    rows = table(measured).split("\n\n")[0]
    assert len(rows.splitlines()) == 2 + len(measured["rows"])
    assert rows in (ROOT / "docs" / "kernels.md").read_text()


def test_a_row_that_failed_is_left_out():
    measured = {"source": "reconstruction", "device": "x", "torch": "2", "commit": "c", "rows": [{"error": "memory"}]}
    assert len(table(measured).split("\n\n")[0].splitlines()) == 2
