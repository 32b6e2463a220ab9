"""Who is called the winner, on which samples, and when nobody is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from report_rows import make_row, make_rows

from indexmem.errors import UserError
from indexmem.report.summary import MEAN, summarise
from indexmem.report.verdict import listing, verdict
from indexmem.results.schema import FAILED, ROW_SCHEMA


def table(scores: dict[tuple[str, float, str], list[float]]) -> pa.Table:
    """Rows with exactly these scores, sample i of every cell being the same sample."""
    rows = [make_row(m, r, b, i, s) for (m, r, b), values in scores.items() for i, s in enumerate(values)]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def test_a_clear_lead_makes_one_winner_and_the_rest_are_behind() -> None:
    summary = summarise(table({("good", 0.5, "b"): [1.0] * 20, ("bad", 0.5, "b"): [0.0] * 20}))
    contest = summary.contests[0.5, "b"]
    assert [contest.standing(m) for m in ("good", "bad")] == ["winner", "behind"]
    assert contest.lead["bad"].mean == 1.0


def test_a_lead_within_noise_makes_no_winner() -> None:
    summary = summarise(table({("good", 0.5, "b"): [1.0] * 4, ("bad", 0.5, "b"): [0.0] * 4}))
    contest = summary.contests[0.5, "b"]
    assert contest.leading == ("good", "bad")
    assert contest.standing("good") == "leading"


def test_more_rivals_need_a_larger_lead() -> None:
    """Seven wins of seven have p = 1/64: enough against one rival, not with Holm's factor for four."""
    cells = {("good", 0.5, "b"): [1.0] * 7, ("r0", 0.5, "b"): [0.0] * 7}
    assert summarise(table(cells)).contests[0.5, "b"].standing("good") == "winner"
    cells |= {(f"r{i}", 0.5, "b"): [0.0] * 7 for i in range(1, 4)}
    assert summarise(table(cells)).contests[0.5, "b"].standing("good") == "leading"


def test_a_method_without_a_rival_is_alone() -> None:
    summary = summarise(table({("only", 0.5, "b"): [1.0, 0.0]}))
    assert summary.contests[0.5, MEAN].standing("only") == "alone"
    assert verdict(summary).headline.startswith("Nothing to compare")


def test_the_mean_weighs_benchmarks_equally_and_needs_all_of_them() -> None:
    cells = {("a", 0.5, "x"): [1.0] * 2, ("a", 0.5, "y"): [0.0] * 8, ("b", 0.5, "x"): [1.0] * 2}
    summary = summarise(table(cells))
    assert summary.cells["a", 0.5, MEAN].mean == 0.5
    assert ("b", 0.5, MEAN) not in summary.cells
    assert summary.contests[0.5, MEAN].standing("a") == "alone"


def test_failed_samples_leave_the_mean_and_the_pairing_but_are_counted() -> None:
    rows = table({("a", 0.5, "b"): [1.0, 1.0, 0.0], ("c", 0.5, "b"): [0.0, 1.0, 0.0]}).to_pylist()
    rows[2] |= {"status": FAILED, "score": None}
    summary = summarise(pa.Table.from_pylist(rows[::-1], schema=ROW_SCHEMA))
    assert (summary.cells["a", 0.5, "b"].mean, summary.cells["a", 0.5, "b"].n) == (1.0, 2)
    assert (summary.contests[0.5, "b"].lead["c"].mean, summary.contests[0.5, "b"].lead["c"].n) == (0.5, 2)
    assert (summary.failed, summary.total) == (1, 6)


def test_repeats_are_averaged_before_they_count_as_samples() -> None:
    rows = [make_row("a", 0.5, "b", 0, score, repeat=i) for i, score in enumerate((1.0, 0.0, 0.0, 1.0))]
    cell = summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA)).cells["a", 0.5, "b"]
    assert (cell.mean, cell.n) == (0.5, 1)


def test_rows_of_two_experiments_are_refused() -> None:
    rows = table({("a", 0.5, "b"): [1.0, 0.0]}).to_pylist()
    rows[1]["cell_id"] = "other-checkpoint"
    with pytest.raises(UserError, match=r"'a' at ratio 0.5 on 'b' has 2 cell ids"):
        summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))
    with pytest.raises(UserError, match="no result rows"):
        summarise(ROW_SCHEMA.empty_table())


def test_the_verdict_names_winners_ties_and_the_full_cache() -> None:
    said = verdict(summarise(make_rows()))
    assert said.headline == (
        "indexmem is the best method at 75% and 90% eviction. At 25% and 50%, no method is ahead by more than noise."
    )
    assert [finding.decided for finding in said.findings] == [False, False, True, True]
    assert "above the next best, indexer (95% interval" in said.findings[3].text
    assert "Not distinguishable from the full cache" in said.findings[0].text
    assert "17 to 20 samples each" in said.basis


def test_a_loss_against_the_full_cache_is_said() -> None:
    cells = {("full", 0.0, "b"): [1.0] * 20, ("a", 0.5, "b"): [0.0] * 20}
    assert "100.0 points below the full cache" in verdict(summarise(table(cells))).findings[0].text


@pytest.mark.parametrize(
    ("items", "text"), [("a", "a"), ("ab", "a and b"), ("abcd", "a, b, c and d"), ("abcdef", "a, b, c and 3 more")]
)
def test_listing(items: str, text: str) -> None:
    assert listing(list(items)) == text
