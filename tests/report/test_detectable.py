"""The smallest lead that would have shown."""

from __future__ import annotations

import pyarrow as pa
import pytest
from report_rows import make_row

from indexmem.config.budget import Budget
from indexmem.report.verdict import verdict
from indexmem.results.power import minimum_detectable_difference
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import MEAN, Summary, summarise

HALF = Budget.of_ratio(0.5)
CELLS = {"a": [1.0, 1.0, 0.0, 1.0], "b": [1.0, 0.0, 1.0, 0.0], "c": [0.0, 0.0, 0.0, 1.0]}


def made(cells: dict[str, list[float]]) -> Summary:
    rows = [make_row(m, 0.5, name, i, s) for name in ("x", "y") for m, v in cells.items() for i, s in enumerate(v)]
    return summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))


def test_it_is_that_of_the_closest_rival_at_the_columns_level() -> None:
    summary = made(CELLS)
    assert summary.contests[HALF, MEAN].closest_rival == "b"
    wanted = minimum_detectable_difference(CELLS["a"] * 2, CELLS["b"] * 2, strata=[0] * 4 + [1] * 4, comparisons=3)
    assert summary.contests[HALF, MEAN].detectable_lead == pytest.approx(wanted)
    assert f"A lead of {100 * wanted:.0f} points would show" in verdict(summary).findings[0].text


def test_without_a_rival_there_is_none() -> None:
    assert made({"a": [1.0, 0.0]}).contests[HALF, MEAN].detectable_lead is None
