"""Intervals and tests against hand-computed values, properties, and their own coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.results.comparison import holm, paired_difference
from indexmem.results.intervals import Interval, mean_ci, mean_over

unit = st.floats(0, 1, allow_subnormal=False)
few = {"resamples": 200}


def test_binary_scores_get_the_published_wilson_interval() -> None:
    interval = mean_ci([1] * 8 + [0] * 2)
    assert (interval.mean, interval.n) == (0.8, 10)
    assert (interval.low, interval.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_ten_of_ten_is_not_certainty() -> None:
    perfect, none = mean_ci([1.0] * 10), mean_ci([0.0] * 10)
    assert (perfect.low, perfect.high) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert (none.low, none.high) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_constant_graded_scores_and_a_single_one_keep_a_width() -> None:
    # z^2 / (n + z^2) = 0.4345 of unseen samples at n = 5, anywhere between 0 and 1
    interval = mean_ci([0.5] * 5)
    assert (interval.low, interval.high) == pytest.approx((0.5 - 0.4345 / 2, 0.5 + 0.4345 / 2), abs=1e-4)
    assert mean_ci([0.5]).half_width > interval.half_width


def test_graded_scores_match_the_normal_interval_when_there_are_many() -> None:
    scores = np.random.default_rng(0).random(400)
    interval = mean_ci(scores)
    standard_error = scores.std(ddof=1) / 20
    assert (interval.low, interval.high) == pytest.approx(
        (scores.mean() - 1.96 * standard_error, scores.mean() + 1.96 * standard_error), abs=0.004
    )


def test_tails_of_few_graded_scores_are_those_of_students_t() -> None:
    """Plain percentiles are too narrow twice: by z for t, and by sqrt((n - 1) / n) for the bootstrap's own spread."""
    scores = np.linspace(0.3, 0.7, 8)
    interval = mean_ci(scores, resamples=100_000)
    t_7 = 2.364624  # 97.5 %
    assert interval.half_width == pytest.approx(t_7 * scores.std(ddof=1) / 8**0.5, rel=0.03)


@pytest.mark.parametrize("n", [8, 30])
@pytest.mark.parametrize("grades", [(0, 1), (0, 0.25, 0.5, 0.75, 1)], ids=["binary", "graded"])
def test_coverage_is_near_its_level(n: int, grades: tuple[float, ...]) -> None:
    rng = np.random.default_rng(3)
    covered = []
    for trial in range(400):
        chances = rng.dirichlet(np.ones(len(grades)))
        interval = mean_ci(rng.choice(grades, n, p=chances), seed=trial, resamples=400)
        covered.append(interval.low <= chances @ np.array(grades) <= interval.high)
    assert 0.90 <= np.mean(covered) <= 0.99


@given(st.lists(unit, min_size=1, max_size=30))
def test_the_interval_is_ordered_bounded_and_repeatable(scores: list[float]) -> None:
    interval = mean_ci(scores, **few)
    assert -1e-12 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1 + 1e-12
    assert interval == mean_ci(scores, **few)


def test_scores_of_failed_samples_and_empty_cells_are_refused() -> None:
    for wrong in ([], [0.5, float("nan")], [1.5], [[0.5]]):
        with pytest.raises(AssertionError):
            mean_ci(wrong)


def test_one_stratum_is_left_as_it_is_and_four_halve_the_width() -> None:
    one = Interval(0.5, 0.4, 0.7, 10)
    assert mean_over([one]) == Interval(0.5, pytest.approx(0.4), pytest.approx(0.7), 10)
    assert mean_over([one] * 4) == Interval(0.5, pytest.approx(0.45), pytest.approx(0.6), 40)


def test_the_mean_over_strata_agrees_with_the_stratified_bootstrap() -> None:
    rng = np.random.default_rng(5)
    strata = [rng.random(60) * scale for scale in (0.3, 0.6, 1.0)]
    combined = mean_over([mean_ci(scores) for scores in strata])
    draws = [rng.choice(scores, (4000, scores.size)).mean(axis=1) for scores in strata]
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    assert (combined.low, combined.high) == pytest.approx((low, high), abs=0.006)


@pytest.mark.parametrize("wins", [3, 5, 8])
def test_the_p_value_of_nothing_but_wins_is_the_exact_one(wins: int) -> None:
    result = paired_difference([1] * wins, [0] * wins, resamples=20_000)
    assert result.p_value == pytest.approx(2 / 2**wins, rel=0.15)
    assert result.low < result.high == result.mean == 1.0


def test_identical_answers_are_no_difference_but_not_certainty() -> None:
    result = paired_difference([1, 0] * 5, [1, 0] * 5)
    assert (result.mean, result.p_value) == (0.0, 1.0)
    assert (result.low, result.high) == pytest.approx((-0.2775, 0.2775), abs=1e-4)


def test_pairing_sees_a_small_steady_difference_that_the_means_hide() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(40) * 0.8
    result = paired_difference(base + 0.05 + 0.02 * rng.random(40), base)
    assert result.p_value < 0.01
    assert result.low > 0.05
    assert mean_ci(base).half_width > 0.05


def test_strata_weigh_the_same_whatever_their_size() -> None:
    a = [1, 1] + [0] * 8
    result = paired_difference(a, [0] * 10, strata=["x"] * 2 + ["y"] * 8)
    assert (result.mean, result.n) == (0.5, 10)


@given(st.lists(st.tuples(unit, unit), min_size=1, max_size=25))
def test_swapping_the_methods_mirrors_the_difference(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs)
    forth, back = paired_difference(a, b, **few), paired_difference(b, a, **few)
    assert forth.mean == pytest.approx(-back.mean)
    assert forth.p_value == back.p_value
    assert 0 < forth.p_value <= 1
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-9)


def test_p_values_without_a_difference_are_uniform_enough() -> None:
    rng = np.random.default_rng(2)
    p = [paired_difference(*rng.integers(0, 2, (2, 25)), seed=i, resamples=300).p_value for i in range(400)]
    assert np.mean(np.array(p) < 0.05) <= 0.07


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]).size == 0


@given(st.lists(unit, min_size=1, max_size=12))
def test_holm_lies_between_raw_and_bonferroni_and_keeps_the_order(p: list[float]) -> None:
    raw, adjusted = np.array(p), holm(p)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, raw * raw.size) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(raw, kind="stable")]) >= 0).all()
