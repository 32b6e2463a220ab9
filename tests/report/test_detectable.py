"""The smallest lead that would have shown."""

from __future__ import annotations

import pyarrow as pa
import pytest
from report_rows import make_row

from indexmem.report.verdict import verdict
from indexmem.results.power import minimum_detectable_difference
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import Summary, summarise

CELLS = {"a": [1.0, 1.0, 0.0, 1.0], "b": [1.0, 0.0, 1.0, 0.0], "c": [0.0, 0.0, 0.0, 1.0]}


def made(cells: dict[str, list[float]]) -> Summary:
    rows = [make_row(m, 0.5, name, i, s) for name in ("x", "y") for m, v in cells.items() for i, s in enumerate(v)]
    return summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))


def test_it_is_pooled_over_rivals_and_budgets_and_said_once() -> None:
    summary = made(CELLS)
    strata = [0] * 4 + [1] * 4
    each = [
        minimum_detectable_difference(CELLS["a"] * 2, CELLS[rival] * 2, strata=strata, comparisons=3)
        for rival in ("b", "c")
    ]
    wanted = ((each[0] ** 2 + each[1] ** 2) / 2) ** 0.5
    assert summary.detectable_lead == pytest.approx(wanted)
    said = verdict(summary)
    assert f"A lead of about {100 * wanted:.0f} points would show in 4 of 5 such comparisons." in said.basis
    assert not any("would show" in finding.text for finding in said.findings)


def test_without_a_rival_there_is_none() -> None:
    assert made({"a": [1.0, 0.0]}).detectable_lead is None
