"""Summaries of cells: what the interval resamples, what a mean over benchmarks may leave out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from indexmem.config.budget import Budget
from indexmem.results.schema import FAILED, OK, ROW_SCHEMA
from indexmem.tracking.summary import overall, overall_metrics, score_note, summarise


def cell_rows(
    method: str, budget: float | str, benchmark: str, scores: list[float | None], **values: Any
) -> list[dict]:
    """One row per score; None is a failed sample."""
    requested = Budget.parse(budget)
    return [
        {
            "cell_id": f"{method}-{requested}-{benchmark}",
            "sample_id": f"{benchmark}/{index}",
            "repeat": 0,
            "method": method,
            "budget": str(requested),
            "ratio": requested.ratio,
            "benchmark": benchmark,
            "score": score,
            "status": FAILED if score is None else OK,
            "git_commit": "abc",
            **values,
        }
        for index, score in enumerate(scores)
    ]


def table(*cells: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([row for cell in cells for row in cell], schema=ROW_SCHEMA)


def test_a_cell_counts_failures_and_averages_ok_rows() -> None:
    rows = cell_rows("snapkv", 0.5, "niah", [1.0, 0.0, None], kv_bytes=100)
    rows[2]["kv_bytes"] = None
    (cell,) = summarise(table(rows))
    assert (cell.samples, cell.failed, cell.git_commit) == (2, 1, "abc")
    assert cell.metrics["score"] == 0.5
    assert 0 <= cell.metrics["score_ci_low"] < 0.5 < cell.metrics["score_ci_high"] <= 1
    assert cell.metrics["kv_bytes"] == 100
    assert "kept_mean" not in cell.metrics  # never measured here, and not zero


def test_a_cell_without_any_score_has_none() -> None:
    (cell,) = summarise(table(cell_rows("snapkv", 0.5, "niah", [None, None])))
    assert cell.metrics == {"samples": 0.0, "failed": 2.0}


def test_repeats_of_a_sample_do_not_narrow_the_interval() -> None:
    once = cell_rows("m", 0.5, "b", [1.0, 0.0, 1.0, 0.0])
    thrice = [row | {"repeat": repeat} for row in once for repeat in range(3)]
    (single,), (repeated,) = summarise(table(once)), summarise(table(thrice))
    assert repeated.score == single.score
    assert repeated.samples == 12


def test_overall_weighs_benchmarks_equally_and_leaves_out_partial_methods() -> None:
    cells = summarise(
        table(
            cell_rows("a", 0.5, "b1", [1.0]),
            cell_rows("a", 0.5, "b2", [0.0, 0.0, 0.0]),
            cell_rows("b", 0.5, "b1", [1.0]),
            cell_rows("b", 0.5, "b2", [None]),
        )
    )
    assert {key: score.mean for key, score in overall(cells).items()} == {("a", Budget.of_ratio(0.5)): 0.5}
    assert overall_metrics(cells) == pytest.approx(
        {"cells": 4, "samples": 5, "failed": 1, "score/a/r0.50": 0.5}, rel=1e-12
    )


def test_the_note_has_a_row_per_method_and_a_column_per_budget() -> None:
    cells = summarise(
        table(
            cell_rows("a", "8 MiB", "b", [0.0]), cell_rows("a", "64 tokens", "b", [0.0]),
            cell_rows("a", 0.5, "b", [1.0, 1.0]), cell_rows("full", 0.0, "b", [1.0]),
        )
    )  # fmt: skip
    lines = score_note("grid", cells).splitlines()
    assert lines[3] == "| method | 0% evicted | 50% evicted | 64 tokens kept | 8 MiB in all |"
    assert lines[5].startswith("| a |  | 1.000 ± ")
    assert lines[6].startswith("| full | 1.000 ± ")
    assert {"score/a/r0.50", "score/a/64tokens", "score/a/8MiB"} <= overall_metrics(cells).keys()
    assert score_note("empty", []).startswith("## empty\n0 cells")
