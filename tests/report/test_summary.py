"""Who is called the winner, on which samples, and when nobody is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from report_rows import MIXED, make_row, make_rows

from indexmem.config.budget import Budget
from indexmem.errors import UserError
from indexmem.report.verdict import listing, places, verdict
from indexmem.results.schema import FAILED, ROW_SCHEMA
from indexmem.results.summary import MEAN, summarise

HALF = Budget.of_ratio(0.5)


def table(scores: dict[tuple[str, float | Budget, str], list[float]]) -> pa.Table:
    """Rows with exactly these scores, sample i of every cell being the same sample."""
    rows = [make_row(m, r, b, i, s) for (m, r, b), values in scores.items() for i, s in enumerate(values)]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def test_a_clear_lead_makes_one_winner_and_the_rest_are_behind() -> None:
    summary = summarise(table({("good", 0.5, "b"): [1.0] * 20, ("bad", 0.5, "b"): [0.0] * 20}))
    contest = summary.contests[HALF, "b"]
    assert [contest.standing(m) for m in ("good", "bad")] == ["winner", "behind"]
    assert contest.lead["bad"].mean == 1.0


def test_a_lead_within_noise_makes_no_winner() -> None:
    summary = summarise(table({("good", 0.5, "b"): [1.0] * 4, ("bad", 0.5, "b"): [0.0] * 4}))
    contest = summary.contests[HALF, "b"]
    assert contest.leading == ("good", "bad")
    assert contest.standing("good") == "leading"


def test_more_rivals_need_a_larger_lead() -> None:
    """Seven wins of seven have p = 1/64: enough against one rival, not with Holm's factor for four."""
    cells = {("good", 0.5, "b"): [1.0] * 7, ("r0", 0.5, "b"): [0.0] * 7}
    assert summarise(table(cells)).contests[HALF, "b"].standing("good") == "winner"
    cells |= {(f"r{i}", 0.5, "b"): [0.0] * 7 for i in range(1, 4)}
    assert summarise(table(cells)).contests[HALF, "b"].standing("good") == "leading"


def test_a_method_without_a_rival_is_alone() -> None:
    summary = summarise(table({("only", 0.5, "b"): [1.0, 0.0]}))
    assert summary.contests[HALF, MEAN].standing("only") == "alone"
    assert verdict(summary).headline.startswith("Nothing to compare")


def test_the_mean_weighs_benchmarks_equally_and_needs_all_of_them() -> None:
    cells = {("a", 0.5, "x"): [1.0] * 2, ("a", 0.5, "y"): [0.0] * 8, ("b", 0.5, "x"): [1.0] * 2}
    summary = summarise(table(cells))
    assert summary.cells["a", HALF, MEAN].mean == 0.5
    assert ("b", HALF, MEAN) not in summary.cells
    assert summary.contests[HALF, MEAN].standing("a") == "alone"


def test_failed_samples_leave_the_mean_and_the_pairing_but_are_counted() -> None:
    rows = table({("a", 0.5, "b"): [1.0, 1.0, 0.0], ("c", 0.5, "b"): [0.0, 1.0, 0.0]}).to_pylist()
    rows[2] |= {"status": FAILED, "score": None}
    summary = summarise(pa.Table.from_pylist(rows[::-1], schema=ROW_SCHEMA))
    assert (summary.cells["a", HALF, "b"].mean, summary.cells["a", HALF, "b"].n) == (1.0, 2)
    assert (summary.contests[HALF, "b"].lead["c"].mean, summary.contests[HALF, "b"].lead["c"].n) == (0.5, 2)
    assert (summary.failed, summary.total) == (1, 6)


def test_repeats_are_averaged_before_they_count_as_samples() -> None:
    rows = [make_row("a", 0.5, "b", 0, score, repeat=i) for i, score in enumerate((1.0, 0.0, 0.0, 1.0))]
    cell = summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA)).cells["a", HALF, "b"]
    assert (cell.mean, cell.n) == (0.5, 1)


def test_rows_of_two_experiments_are_refused() -> None:
    rows = table({("a", 0.5, "b"): [1.0, 0.0]}).to_pylist()
    rows[1]["cell_id"] = "other-checkpoint"
    with pytest.raises(UserError, match=r"'a' at 50% on 'b' has 2 cell ids"):
        summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))
    with pytest.raises(UserError, match="no result rows"):
        summarise(ROW_SCHEMA.empty_table())


def test_the_verdict_names_winners_ties_and_the_full_cache() -> None:
    said = verdict(summarise(make_rows()))
    assert said.headline == (
        "indexmem is the best method at 75% and 90% eviction. "
        "At 25% and 50% eviction, no method is ahead by more than noise."
    )
    assert [finding.decided for finding in said.findings] == [False, False, True, True]
    assert "above the next best, indexer (95% interval" in said.findings[3].text
    assert "Not distinguishable from the full cache" in said.findings[0].text
    assert "17 to 20 samples each" in said.basis


def test_budgets_of_all_kinds_are_compared_each_on_its_own() -> None:
    tokens, size = Budget.parse("64 tokens"), Budget.parse("1 MiB")
    cells = {("a", tokens, "b"): [1.0] * 20, ("c", tokens, "b"): [0.0] * 20}
    cells |= {("a", size, "b"): [0.0] * 20, ("c", size, "b"): [1.0] * 20, ("a", HALF, "b"): [1.0] * 20}
    summary = summarise(table(cells))
    assert summary.budgets == (HALF, tokens, size)
    assert {at: contest.best for (at, name), contest in summary.contests.items() if name == MEAN} == {
        HALF: "a", tokens: "a", size: "c",
    }  # fmt: skip
    said = verdict(summary)
    assert said.headline == "a is the best method at 64 tokens. c is the best method at 1 MiB."
    assert [finding.budget for finding in said.findings] == [HALF, tokens, size]


def test_places_say_what_the_numbers_are_of() -> None:
    assert places(MIXED[:2]) == "50% and 90% eviction"
    assert places(MIXED[1:4]) == "90% eviction and at 1024 tokens and 256 tokens"
    assert places(MIXED[-2:]) == "8 MiB and 4 MiB"


def test_a_loss_against_the_full_cache_is_said() -> None:
    cells = {("full", 0.0, "b"): [1.0] * 20, ("a", 0.5, "b"): [0.0] * 20}
    assert "100.0 points below the full cache" in verdict(summarise(table(cells))).findings[0].text


@pytest.mark.parametrize(
    ("items", "text"), [("a", "a"), ("ab", "a and b"), ("abcd", "a, b, c and d"), ("abcdef", "a, b, c and 3 more")]
)
def test_listing(items: str, text: str) -> None:
    assert listing(list(items)) == text
