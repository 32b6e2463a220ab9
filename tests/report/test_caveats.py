"""What is said beside the numbers, in every form of a report."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from report_rows import make_row, make_rows

from indexmem.commands.report import verdict_text
from indexmem.report.verdict import verdict
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import Summary, summarise
from indexmem.results.tables import render_text
from indexmem.tracking.note import grid_note


def made(budget: str, kept: list[int], **columns: object) -> Summary:
    """Two methods on contexts of 427 tokens, of which they keep so many."""
    rows = [
        make_row(m, budget, "b", i, 1.0, context_tokens=427, kept_min=k, measured_ratio=1 - k / 427, **columns)
        for m in ("knorm", "snapkv")
        for i, k in enumerate(kept)
    ]
    full = [make_row("full", 0.0, "b", i, 1.0, context_tokens=427, measured_ratio=0.0) for i in range(len(kept))]
    return summarise(pa.Table.from_pylist(rows + full, schema=ROW_SCHEMA))


@pytest.mark.parametrize("budget", ["5000 tokens", "64 MiB"])
def test_a_budget_that_no_context_exceeds_is_named(budget: str) -> None:
    summary = made(budget, [427, 427])
    assert summary.caveats == (f"Nothing was evicted at {budget}: contexts have at most 427 tokens.",)
    assert summary.caveats[0] in render_text(summary)
    assert summary.caveats[0] in verdict(summary).basis
    note = grid_note(summary, [], verdict=verdict_text(verdict(summary)))
    assert note.count(summary.caveats[0]) == 1


def test_contexts_of_which_some_are_too_short_are_counted() -> None:
    said = "Nothing was evicted at 400 tokens in 2 of 8 answers, whose contexts are too short."
    assert made("400 tokens", [400, 400, 427, 400]).caveats == (said,)


def test_where_all_is_evicted_by_one_version_nothing_is_said() -> None:
    assert made("400 tokens", [400, 400]).caveats == ()
    assert summarise(make_rows(("snapkv", "knorm"), failures=0)).caveats == ()


@pytest.mark.parametrize("package", ["kvpress", "transformers", "torch"])
def test_rows_of_several_versions_are_named(package: str) -> None:
    rows = make_rows(failures=0).to_pylist()
    for row in rows[: len(rows) // 2]:
        row["versions"] = json.dumps(json.loads(row["versions"]) | {package: "0.6.0", "ray": "9", "python": "3.12"})
    old = json.loads(rows[-1]["versions"])[package]
    summary = summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))
    both = " and ".join(sorted([old, "0.6.0"]))
    assert summary.caveats[-1] == f"Rows come from {package} {both}: a difference may be one between versions."


def test_rows_without_versions_are_no_mix() -> None:
    rows = make_rows(failures=0).to_pylist()
    rows[0]["versions"] = None
    said = summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA)).caveats
    assert not any("Rows come from" in sentence for sentence in said)
