"""Summaries of cells and grids: what the interval resamples, what a mean may leave out, what the note says."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
import pytest
from report_rows import MIXED, make_row, make_rows

from indexmem.config.budget import Budget
from indexmem.report.files import scores_csv
from indexmem.results.schema import FAILED, OK, ROW_SCHEMA
from indexmem.results.summary import summarise
from indexmem.tracking.cells import grid_metrics, held_shares, in_order, score_curves, summarise_cells
from indexmem.tracking.note import MOST_METHODS, grid_note

HALF = Budget.of_ratio(0.5)


def cell_rows(
    method: str, budget: float | str, benchmark: str, scores: list[float | None], **values: Any
) -> list[dict]:
    """One row per score; None is a failed sample."""
    return [
        make_row(method, Budget.parse(budget), benchmark, index, score or 0.0)
        | {"score": score, "status": FAILED if score is None else OK}
        | values
        for index, score in enumerate(scores)
    ]


def table(*cells: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([row for cell in cells for row in cell], schema=ROW_SCHEMA)


def note(rows: pa.Table, **parts: Any) -> str:
    return grid_note(summarise(rows), summarise_cells(rows), **parts)


def test_a_cell_counts_failures_and_averages_ok_rows() -> None:
    rows = cell_rows("snapkv", 0.5, "niah", [1.0, 0.0, None], kv_bytes=2**20, memory_bytes=2**19, kept_mean=None)
    rows[2]["kv_bytes"] = None
    (cell,) = summarise_cells(table(rows))
    assert (cell.samples, cell.failed, cell.git_commit) == (2, 1, "4be1d0c5a3f2")
    assert cell.metrics["score"] == 0.5
    assert 0 <= cell.metrics["interval/low"] < 0.5 < cell.metrics["interval/high"] <= 1
    assert (cell.metrics["MiB/kv"], cell.metrics["MiB/held"]) == (1, 1.5)
    assert "ms/decode" not in cell.metrics, "the batch was that of 24 rows"
    assert "tokens/kept" not in cell.metrics  # never measured here, and not zero


def test_fidelity_is_a_metric_where_it_was_asked_for() -> None:
    (cell,) = summarise_cells(table(cell_rows("snapkv", 0.5, "niah", [1.0, 0.0], fidelity_kl=0.25, fidelity_top1=0.9)))
    assert (cell.metrics["nats/from_full_cache"], cell.metrics["percent/as_full_cache"]) == (0.25, 90)
    (cell,) = summarise_cells(table(cell_rows("snapkv", 0.5, "niah", [1.0])))
    assert not [name for name in cell.metrics if "full_cache" in name and "MiB" not in name]


def test_a_cell_without_any_score_has_none() -> None:
    (cell,) = summarise_cells(table(cell_rows("snapkv", 0.5, "niah", [None, None])))
    assert cell.metrics == {"rows/ok": 0.0, "rows/failed": 2.0}
    assert cell.held_share is None


def test_repeats_of_a_sample_do_not_narrow_the_interval() -> None:
    once = cell_rows("m", 0.5, "b", [1.0, 0.0, 1.0, 0.0])
    thrice = [row | {"repeat": repeat} for row in once for repeat in range(3)]
    (single,), (repeated,) = summarise_cells(table(once)), summarise_cells(table(thrice))
    assert repeated.score == single.score
    assert repeated.samples == 12


def test_a_cell_names_each_trained_module_that_it_used() -> None:
    rows = table(cell_rows("m", 0.5, "b", [1.0], checkpoint="a" * 16 + "b" * 16), cell_rows("n", 0.5, "b", [1.0]))
    assert [cell.weights for cell in summarise_cells(rows)] == [("a" * 16, "b" * 16), ()]


def test_grid_metrics_are_the_means_of_the_report() -> None:
    rows = make_rows(budgets=MIXED, samples=6)
    lines = list(csv.DictReader(io.StringIO(scores_csv({"tiny": summarise(rows)}))))
    means = [line["mean"] for line in lines if line["benchmark"] == "mean"]
    reported = sorted(float(mean) for mean in means if mean)  # without what is not ranked
    metrics = grid_metrics(summarise(rows), summarise_cells(rows))
    assert sorted(v for name, v in metrics.items() if name.startswith("score/")) == pytest.approx(reported, abs=1e-6)
    assert {"score/snapkv/r0.50", "score/snapkv/1024tokens", "score/snapkv/8MiB", "score/full/r0.00"} <= metrics.keys()
    assert (metrics["rows/failed"], metrics["rows/ok"]) == (3, rows.num_rows - 3)


def test_means_weigh_benchmarks_equally_and_leave_out_partial_methods() -> None:
    rows = table(
        cell_rows("a", 0.5, "b1", [1.0]), cell_rows("a", 0.5, "b2", [0.0, 0.0, 0.0]),
        cell_rows("b", 0.5, "b1", [1.0]), cell_rows("b", 0.5, "b2", [None]),
    )  # fmt: skip
    metrics = grid_metrics(summarise(rows), summarise_cells(rows))
    assert metrics == pytest.approx({"cells": 4, "rows/ok": 5, "rows/failed": 1, "score/a/r0.50": 0.5})


def test_curves_have_a_step_per_whole_percentage() -> None:
    cells = [cell_rows("a", budget, "b", [1.0]) for budget in (0.07, 0.29, 0.975, "64 tokens")]
    curves = score_curves(summarise(table(*cells)))
    assert curves == [("by_evicted/a", step, 1.0) for step in (7, 29)]


def test_cells_are_listed_as_in_the_report() -> None:
    rows = make_rows(("knorm", "indexmem"), (HALF, Budget.of_ratio(0.9)), ("x", "y"), samples=20)
    listed = [cell.cell_id for cell in in_order(summarise_cells(rows), summarise(rows))]
    budgets = [("full", "0%"), *((method, at) for method in ("indexmem", "knorm") for at in ("50%", "90%"))]
    assert listed == [f"{method}-{budget}-{benchmark}" for method, budget in budgets for benchmark in "xy"]


def test_the_note_marks_a_winner_and_ties() -> None:
    clear = table(cell_rows("good", 0.5, "b", [1.0] * 20), cell_rows("bad", 0.5, "b", [0.0] * 20))
    assert "| good |&emsp;**100 (84 to 100)** |" in note(clear)
    assert "~ |" not in note(clear)
    tied = table(cell_rows("good", 0.5, "b", [1.0] * 3), cell_rows("bad", 0.5, "b", [0.0] * 3))
    assert "**" not in note(tied)
    assert note(tied).count("~ |") == 2


def test_the_note_opens_with_the_outcome_and_has_scores_and_bytes() -> None:
    rows = make_rows(budgets=MIXED, samples=5)
    text = note(rows, verdict="**a wins**\n\n- because", links={"[r]": "#/r"})
    parts = text.split("\n\n")
    assert parts[:2] == ["**a wins**", "[(r)](#/r)"]
    assert "**3 of " in parts[2]
    assert parts[3] == "- because"
    assert "The full cache, nothing evicted: " in parts[4]
    held = held_shares(summarise_cells(rows))["indexmem", HALF]
    assert 0.5 < held < 0.6  # half the keys and values, and the memory
    assert f"| indexmem |&emsp;{100 * held:.1f} |" in text


def test_a_note_on_many_methods_shows_the_best() -> None:
    names = [f"m{number:02d}" for number in range(40)]
    cells = [cell_rows(name, budget, "b", [1.0] * 9) for name in names for budget in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)]
    text = note(table(*cells))
    assert text.count("| m") == 2 * (MOST_METHODS + 1)  # with the line of headings
    assert "24 more methods are in the report." in text
    assert len(text) < 8000


def test_a_full_cache_without_rivals_has_a_score_and_no_table() -> None:
    text = note(table(cell_rows("full", 0.0, "b", [1.0, 1.0])))
    assert "nothing evicted: 100 (34 to 100)." in text
    assert "|" not in text


def test_a_grid_in_which_all_failed_has_a_note_and_a_table() -> None:
    rows = table(cell_rows("a", 0.5, "b", [None]))
    assert "**1 of 1 rows failed**" in note(rows)
