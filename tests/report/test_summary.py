"""Who is called the winner, on which samples, and when nobody is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from report_rows import MIXED, make_row, make_rows

from indexmem.config.budget import Budget
from indexmem.errors import UserError
from indexmem.report.files import scores_csv
from indexmem.report.verdict import budget_list, listing, verdict
from indexmem.results.schema import FAILED, ROW_SCHEMA
from indexmem.results.summary import MEAN, summarise
from indexmem.results.tables import render_text, sample_counts

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
    """Seven wins of seven have p = 1/64: enough against one rival, not with four that err on other samples."""
    cells = {("good", 0.5, "b"): [1.0] * 7 + [0.0] * 14, ("r0", 0.5, "b"): [0.0] * 21}
    assert summarise(table(cells)).contests[HALF, "b"].standing("good") == "winner"
    wins = np.eye(3).repeat(7, axis=1)  # each rival is right where all others are wrong
    cells |= {(f"r{i}", 0.5, "b"): (0.9 * wins[i]).tolist() for i in (1, 2)}
    assert summarise(table(cells)).contests[HALF, "b"].standing("good") == "leading"


def test_rivals_that_answer_alike_cost_nothing() -> None:
    """120 rivals that are wrong everywhere are one comparison: 100 of 100 is no noise."""
    cells = {("good", 0.5, "b"): [1.0] * 100} | {(f"r{i}", 0.5, "b"): [0.0] * 100 for i in range(120)}
    contest = summarise(table(cells)).contests[HALF, "b"]
    assert contest.standing("good") == "winner"
    assert {lead.p_value for lead in contest.lead.values()} == {1 / 2001}


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


def fail(rows: pa.Table, method: str, samples: Sequence[int], benchmark: str = "b") -> pa.Table:
    """The same rows, in reverse order, with these samples of a method failed."""
    ids = {f"{benchmark}/{index}" for index in samples}
    changed = [
        row | ({"status": FAILED, "score": None} if row["method"] == method and row["sample_id"] in ids else {})
        for row in rows.to_pylist()
    ]
    return pa.Table.from_pylist(changed[::-1], schema=ROW_SCHEMA)


def test_a_few_failed_samples_leave_the_means_of_all_methods_but_are_counted() -> None:
    rows = fail(table({("a", 0.5, "b"): [1.0] * 15 + [0.0] * 5, ("c", 0.5, "b"): [1.0] * 10 + [0.0] * 10}), "a", [18])
    summary = summarise(rows)
    cells = [summary.cells[method, HALF, "b"] for method in ("a", "c")]
    assert [(cell.mean, cell.n) for cell in cells] == [(pytest.approx(15 / 19), 19), (pytest.approx(10 / 19), 19)]
    lead = summary.contests[HALF, "b"].lead["c"]
    assert (lead.mean, lead.n) == (pytest.approx(5 / 19), 19)
    assert (summary.failed, summary.total) == (1, 40)


@pytest.mark.parametrize("place", [slice(0, 20), slice(10, 30), slice(20, 40)], ids=["first", "middle", "last"])
def test_a_method_that_fails_on_hard_samples_does_not_win(place: slice) -> None:
    """80 % of the 20 samples that it answers, where the other method has 90 %, and 35 % over all 40."""
    failed, answered = range(40)[place], sorted(set(range(40)) - set(range(40)[place]))
    right = {"fails": set(answered[:16]), "answers": set(answered[:18])}
    scores = {(m, 0.5, "b"): [float(i in found) for i in range(40)] for m, found in right.items()}
    rows = fail(table(scores | {("third", 0.5, "b"): [0.0] * 40}), "fails", failed)
    summary = summarise(rows)
    contest = summary.contests[HALF, MEAN]
    assert (contest.best, contest.standing("answers"), contest.standing("fails")) == ("answers", "winner", "unranked")
    assert ("fails", HALF, MEAN) not in summary.cells
    assert summary.cells["answers", HALF, MEAN].n == 40
    assert summary.methods == ("answers", "third", "fails")
    said = "Not ranked at 50%: fails (lacks 20 of 40 samples)."
    assert said in verdict(summary).basis
    assert said in render_text(summary)
    assert "m,fails,50%,0.5,mean,,,,,unranked" in scores_csv({"m": summary})


def test_the_best_is_chosen_on_common_samples() -> None:
    """Each leaves out samples where it would have been wrong; on the others the order is the opposite of the means'."""
    scores = {("a", 0.5, "b"): [1.0] * 34 + [0.0] * 6, ("c", 0.5, "b"): [1.0] * 35 + [0.0] * 5}
    summary = summarise(fail(table(scores), "a", [37, 38, 39]))  # 34 of 37 is more than 35 of 40
    contest = summary.contests[HALF, "b"]
    assert (contest.best, summary.cells["c", HALF, "b"].mean) == ("c", pytest.approx(35 / 37))
    assert contest.lead["a"].mean == pytest.approx(1 / 37)


def test_failures_on_one_benchmark_count_by_its_weight() -> None:
    """Half of a benchmark of four samples is a thirtieth of all samples, but an eighth of the mean over four."""
    cells = {(m, 0.5, b): [1.0, 0.0] * (2 if b == "small" else 20) for m in "ac" for b in ("small", "x", "y", "z")}
    contest = summarise(fail(table(cells), "a", [1, 3], "small")).contests[HALF, MEAN]
    assert (contest.standing("a"), contest.standing("c")) == ("unranked", "alone")


def test_methods_that_fail_on_different_samples_are_left_out_until_the_rest_can_be_compared() -> None:
    rows = table({(m, 0.5, "b"): [1.0] * 20 for m in "abcd"})
    for number, method in enumerate("abcd"):
        rows = fail(rows, method, [number])
    assert summarise(rows).contests[HALF, "b"].lacking == {"c": 1, "d": 1}


def test_a_full_cache_without_the_samples_is_not_compared_with() -> None:
    rows = table({("full", 0.0, "b"): [1.0] * 20, ("a", 0.5, "b"): [1.0] * 10 + [0.0] * 10})
    summary = summarise(fail(rows, "full", range(10, 20)))
    assert summary.against_full("a", HALF) is None
    assert "was not evaluated on the same samples" in verdict(summary).findings[0].text
    assert summary.full(MEAN) is None
    assert summary.caveats == ("Not ranked at 0%: full (lacks 10 of 20 samples).",)
    assert "not evaluated" in render_text(summary)


def test_questions_on_one_text_are_one_unit() -> None:
    """Fifty questions of five texts: not enough to tell methods apart, which fifty texts would be."""
    scores = {"a": [1.0] * 50, "c": [0.0] * 50}
    for texts, standing in ((5, "leading"), (50, "winner")):
        rows = [
            make_row(m, 0.5, "b", i, s, group=f"text {i % texts}")
            for m, found in scores.items()
            for i, s in enumerate(found)
        ]
        summary = summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))
        assert summary.contests[HALF, MEAN].standing("a") == standing
        assert summary.cells["a", HALF, MEAN].n == texts
        assert sample_counts(summary) == ("50" if texts == 50 else "50 in 5 groups")


def test_samples_are_paired_by_their_ids_and_not_by_their_places() -> None:
    """Rows in any order, and one sample less: the same difference."""
    rows = table({("a", 0.5, "b"): [1.0, 0.0] * 10, ("c", 0.5, "b"): [1.0, 0.0] * 10})
    summary = summarise(fail(rows, "a", [0]))
    assert summary.contests[HALF, "b"].lead["c"].p_value == 1.0
    assert summary.contests[HALF, "b"].lead["c"].mean == 0.0


def test_the_test_of_the_mean_weighs_benchmarks_equally() -> None:
    """Six wins of six on a small benchmark outweigh twelve losses of sixty on a large one."""
    cells = {("a", 0.5, "x"): [1.0] * 6, ("c", 0.5, "x"): [0.0] * 6}
    cells |= {("a", 0.5, "y"): [0.0] * 60, ("c", 0.5, "y"): [1.0] * 12 + [0.0] * 48}
    contest = summarise(table(cells)).contests[HALF, MEAN]
    assert contest.standing("a") == "winner"
    assert contest.lead["c"].mean == pytest.approx(0.4)
    assert contest.lead["c"].p_value == pytest.approx(2 / 2**6, rel=0.3)


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
    assert budget_list(MIXED[:2]) == "50% and 90% eviction"
    assert budget_list(MIXED[1:4]) == "90% eviction and at 1024 tokens and 256 tokens"
    assert budget_list(MIXED[-2:]) == "8 MiB and 4 MiB"


def test_a_loss_against_the_full_cache_is_said() -> None:
    cells = {("full", 0.0, "b"): [1.0] * 20, ("a", 0.5, "b"): [0.0] * 20}
    assert "100.0 points below the full cache" in verdict(summarise(table(cells))).findings[0].text


@pytest.mark.parametrize(
    ("items", "text"), [("a", "a"), ("ab", "a and b"), ("abcd", "a, b, c and d"), ("abcdef", "a, b, c and 3 more")]
)
def test_listing(items: str, text: str) -> None:
    assert listing(list(items)) == text
