"""What the sample explorer and the page's tables are told."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from report_rows import make_row, make_rows

from indexmem.config.budget import Budget
from indexmem.report.explorer import MAX_ANSWER, sample_groups
from indexmem.report.pack import FIRST, UNKNOWN
from indexmem.report.scorecard import STANDINGS, scorecard
from indexmem.results.schema import FAILED, ROW_SCHEMA
from indexmem.results.summary import summarise


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def scores(cell: dict[str, Any]) -> list[int]:
    return [ord(letter) - FIRST for letter in cell["scores"]]


def test_scores_answers_and_samples_belong_together() -> None:
    rows = [make_row("a", 0.5, "b", i, s, prediction=f"said {i}") for i, s in enumerate((1.0, 0.25, 0.0))]
    rows[2] |= {"status": FAILED, "score": None, "error_class": "OutOfMemoryError", "error_message": "2 GiB"}
    (group,) = sample_groups(table(rows[::-1]), ["b"])
    (cell,) = group["cells"]
    assert group["ids"] == ["b/0", "b/1", "b/2"]
    assert scores(cell) == [100, 25, UNKNOWN]
    said = [group["texts"][cell["said"][i]] for i in range(3)]
    assert said == ["said 0", "said 1", "failed: OutOfMemoryError: 2 GiB"]
    assert group["references"][1] == "7000013"


def test_repeats_are_averaged_and_the_first_one_speaks() -> None:
    rows = [make_row("a", 0.5, "b", 0, s, repeat=r, prediction=f"try {r}") for r, s in ((1, 0.0), (0, 1.0))]
    (group,) = sample_groups(table(rows), ["b"])
    assert scores(group["cells"][0]) == [50]
    assert group["texts"][group["cells"][0]["said"][0]] == "try 0"


def test_samples_come_in_the_order_of_their_numbers() -> None:
    rows = [make_row("a", 0.5, "b", i, 1.0) for i in range(11)]
    assert sample_groups(table(rows), ["b"])[0]["ids"] == [f"b/{i}" for i in range(11)]


def test_where_answers_do_not_fit_the_telling_samples_and_the_recorded_ones_stay() -> None:
    rows = [make_row(m, 0.5, "b", i, 1.0, prediction="x" * 100) for m in ("a", "c") for i in range(9)]
    rows[4]["score"] = 0.0  # methods disagree on sample 4
    assert sample_groups(table(rows), ["b"], characters=200)[0]["told"] == [4]
    assert sample_groups(table(rows), ["b"], first=["b/7"], characters=400)[0]["told"] == [4, 7]
    cell = sample_groups(table(rows), ["b"], characters=200)[0]["cells"][0]
    assert list(cell["said"]) == [4]
    assert len(scores(cell)) == 9


def test_a_huge_answer_is_cut_and_equal_answers_are_stored_once() -> None:
    rows = [make_row(m, 0.5, "b", 0, 0.0, prediction="\x00" + "x" * 10**6) for m in ("a", "c")]
    (group,) = sample_groups(table(rows), ["b"])
    assert group["texts"] == ["␀" + "x" * (MAX_ANSWER - 1) + "…"]


def test_the_scorecard_says_who_is_compared_with_whom() -> None:
    summary = summarise(make_rows())
    card = scorecard("m", summary)
    found = {(card["methods"][c[0]], card["budgets"][c[1]], c[2]): c for c in card["cells"]}
    assert len(found) == len(summary.cells)
    best, last = found["indexmem", "90%", -1], found["random", "90%", -1]
    assert card["methods"][best[6]] == "indexer"
    assert STANDINGS[best[5]] == "winner"
    assert best[7][0] > 0
    lead = summary.contests[Budget.of_ratio(0.9), "mean"].lead["random"]
    assert card["methods"][last[6]] == "indexmem"
    assert last[7] == pytest.approx([-lead.mean, -lead.high, -lead.low, lead.p_value], abs=1e-4)
    assert last[8][0] < 0  # against the full cache
    assert found["full", "0%", -1][6:] == [None, None, None]
