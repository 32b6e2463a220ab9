"""How long answers are, and pass@k: against the definition, and in tables."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import make_row

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results.answers import FULL, Answers, answer_measures, pass_at_k
from indexmem.results.intervals import mean_ci
from indexmem.results.schema import FAILED, ROW_SCHEMA
from indexmem.results.tables import comparison_table

HALF = Budget.of_ratio(0.5)
CELLS = (("full", NOTHING_EVICTED), ("knorm", HALF))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_published_formula(drawn):
    answers, right, k = drawn
    exact = 1 - Fraction(comb(answers - right, k), comb(answers, k))
    assert pass_at_k([answers], [right], k)[0] == pytest.approx(float(exact), abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_have_a_right_one(is_right):
    found = [pass_at_k([len(is_right)], [sum(is_right)], k)[0] for k in range(1, len(is_right) + 1)]
    chosen = [[any(some) for some in combinations(is_right, k)] for k in range(1, len(is_right) + 1)]
    assert found == pytest.approx([np.mean(each) for each in chosen])
    assert found[0] == pytest.approx(np.mean(is_right))
    assert found == sorted(found), "more answers never hurt"


def test_pass_at_k_of_many_samples_at_once_and_of_too_few_answers():
    assert pass_at_k([4, 4, 10], [0, 1, 10], 2).tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(AssertionError, match="pass@5 of fewer than 5 answers"):
        pass_at_k([4, 5], [0, 0], 5)


def table(scores, tokens=lambda method, sample: 10, **changes) -> pa.Table:
    """`scores[method][sample]`: of its repeats."""
    rows = [
        make_row(method, budget, "maths", sample, score, repeat=repeat, new_tokens=tokens(method, sample), **changes)
        for method, budget in CELLS
        for sample, repeats in enumerate(scores[method])
        for repeat, score in enumerate(repeats)
    ]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


REPEATS = {
    "full": [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0] * 4, [1.0] * 4],
    "knorm": [[0.0, 1.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4, [1.0, 1.0, 0.5, 1.0]],  # half right is not right
}


def test_samples_are_the_unit_of_pass_at_k():
    passed = answer_measures(table(REPEATS)).passed
    assert list(passed) == [1, 2, 4]
    for k, found in passed.items():
        for method, budget in CELLS:
            of_samples = pass_at_k([4] * 4, [sum(s == 1 for s in r) for r in REPEATS[method]], k)
            assert found[method, budget] == mean_ci(of_samples)
    together = answer_measures(table(REPEATS, group="one text")).passed
    assert together[2][FULL].n == 1, "questions on one text are one unit"


def test_a_sample_with_fewer_answers_counts_for_smaller_k_alone():
    rows = table(REPEATS).to_pylist()
    rows[0] |= {"status": FAILED, "score": None}
    passed = answer_measures(pa.Table.from_pylist(rows, schema=ROW_SCHEMA)).passed
    assert passed[2][FULL].n == 4
    assert passed[4][FULL].n == 3


def test_one_answer_a_sample_is_no_pass_at_k_and_short_ones_have_no_cost():
    once = {method: [repeats[:1] for repeats in samples] for method, samples in REPEATS.items()}
    assert answer_measures(table(once)) == Answers()
    assert "pass@" not in comparison_table(table(once))


def test_longer_answers_are_a_paired_cost():
    longer = lambda method, sample: 1000 + 500 * sample + (40 + 20 * sample) * (method == "knorm")  # noqa: E731
    found = answer_measures(table(REPEATS, longer))
    assert found.tokens[FULL].mean == pytest.approx(1750)
    more = found.over_full["knorm", HALF]
    assert more.mean == pytest.approx(70)
    assert 40 <= more.low < 70 < more.high <= 100, "pairs know what makes a problem long"
    assert found.tokens[FULL].high - found.tokens[FULL].low > 10 * (more.high - more.low)
    text = comparison_table(table(REPEATS, longer))
    assert "tokens of an answer, full cache  1,750 (" in text
    assert "+70 (" in text
    assert "pass@4, full cache" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_without_a_full_cache_there_is_a_length_and_no_difference():
    rows = table(REPEATS, lambda *_: 400)
    alone = rows.filter(pa.compute.equal(rows["method"], "knorm"))
    found = answer_measures(alone)
    assert (set(found.tokens), found.over_full) == ({("knorm", HALF)}, {})
    assert set(found.measures) == {"tokens", "pass@1", "pass@2", "pass@4"}
