"""Samples that depend on each other: they weigh as they are many, and count as one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.results.comparison import paired_difference
from indexmem.results.intervals import Interval, mean_ci, mean_over
from indexmem.results.units import Design, Units


def test_units_come_in_the_order_of_the_labels() -> None:
    units = Units.of(np.array([1, 0, 0.5, 1]), ["b", "a", "a", "b"])
    assert (units.means.tolist(), units.sizes.tolist(), units.mean) == ([0.25, 1.0], [2, 2], 0.625)
    with pytest.raises(AssertionError, match="3 labels for 2 values"):
        Units.of(np.zeros(2), [1, 2, 3])


def test_every_value_weighs_the_same_however_large_its_cluster_is() -> None:
    scores, texts = [1.0] * 9 + [0.0, 0.5], ["long"] * 9 + ["short", "other"]
    assert mean_ci(scores, clusters=texts).mean == pytest.approx(9.5 / 11)
    assert paired_difference(scores, [0.0] * 11, clusters=texts).mean == pytest.approx(9.5 / 11)


def test_clusters_of_unequal_size_say_less_than_as_many_equal_ones() -> None:
    equal = mean_ci([1.0] * 20, clusters=np.repeat(range(4), 5))
    unequal = mean_ci([1.0] * 20, clusters=[0] * 17 + [1, 2, 3])
    assert equal == mean_ci([1.0] * 4)
    assert unequal.low < equal.low


def test_four_answers_to_ten_prompts_are_ten_samples() -> None:
    scores, prompts = [1.0] * 32 + [0.0] * 8, np.repeat(np.arange(10), 4)
    assert mean_ci(scores, clusters=prompts) == mean_ci([1.0] * 8 + [0.0] * 2)
    assert mean_ci(scores, clusters=prompts).half_width > mean_ci(scores).half_width


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12), st.integers(2, 4))
def test_copies_of_every_pair_change_nothing(pairs: list[tuple[float, float]], copies: int) -> None:
    a, b = np.array(pairs).T
    clusters = np.repeat(np.arange(len(pairs)), copies)
    once = paired_difference(a, b, resamples=200)
    repeated = paired_difference(np.repeat(a, copies), np.repeat(b, copies), clusters=clusters, resamples=200)
    assert repeated.n == once.n
    assert (repeated.mean, repeated.low, repeated.high) == pytest.approx((once.mean, once.low, once.high), abs=1e-9)
    assert repeated.p_value == pytest.approx(once.p_value, abs=0.02)


def test_one_label_in_two_strata_is_two_samples() -> None:
    result = paired_difference([1, 1, 0, 0], [0, 0, 0, 0], strata=[0, 0, 1, 1], clusters=[0, 0, 0, 0])
    assert (result.mean, result.n) == (0.5, 2)


def test_strata_that_share_texts_are_not_independent() -> None:
    """One text in two benchmarks: the errors may have one sign, so limits are added; the test flips both at once."""
    part = Interval(0.5, 0.3, 0.7, 5)
    assert mean_over([part, part], shared=True) == Interval(0.5, pytest.approx(0.3), pytest.approx(0.7), 10)
    assert Design.of(4, [0, 0, 1, 1], ["t", "u", "t", "u"]).shared
    assert not Design.of(4, [0, 0, 1, 1], ["t", "u", "v", "w"]).shared
    apart = paired_difference([1.0] * 12, [0.0] * 12, strata=[0] * 6 + [1] * 6)
    together = paired_difference([1.0] * 12, [0.0] * 12, strata=[0] * 6 + [1] * 6, clusters=[*range(6)] * 2)
    assert apart.p_value < 0.005 < together.p_value == pytest.approx(2 / 2**6, rel=0.3)
    assert together.low < apart.low


@pytest.mark.parametrize(("texts", "least"), [(5, 0.85), (20, 0.92), (60, 0.93)])
def test_intervals_at_ten_questions_a_text_cover_the_truth(texts: int, least: float) -> None:
    """A text makes all of its questions hard or easy: intervals that ignore it are far too narrow."""
    rng, labels = np.random.default_rng(11), np.repeat(np.arange(texts), 10)
    truth = float(_right(0.5 + 2 * rng.standard_normal(200_000)).mean())
    kept, ignored = [], []
    for trial in range(300):
        chances = np.repeat(_right(0.5 + 2 * rng.standard_normal(texts)), 10)
        scores = (rng.random(labels.size) < chances).astype(float)
        for found, clusters in ((kept, labels), (ignored, None)):
            interval = mean_ci(scores, clusters=clusters, seed=trial, resamples=300)
            found.append(interval.low <= truth <= interval.high)
    assert least <= np.mean(kept) <= 0.99
    assert np.mean(ignored) < 0.7


@pytest.mark.parametrize("texts", [10, 40])
def test_the_level_of_a_comparison_holds_at_ten_questions_a_text(texts: int) -> None:
    """Two methods of one quality, each with texts of its own that it is good at: no difference, 95 times in 100."""
    rng, labels = np.random.default_rng(12), np.repeat(np.arange(texts), 10)
    covered, wrong = [], []
    for trial in range(300):
        ease = rng.standard_normal(texts)
        a, b = (
            (rng.random(labels.size) < np.repeat(_right(ease + rng.standard_normal(texts)), 10)).astype(float)
            for _ in range(2)
        )
        result = paired_difference(a, b, clusters=labels, seed=trial, resamples=300)
        covered.append(result.low <= 0 <= result.high)
        wrong.append(result.p_value < 0.05)
    assert np.mean(covered) >= 0.91
    assert np.mean(wrong) <= 0.08


def _right(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def test_the_level_holds_with_repeats_and_fails_without_their_labels() -> None:
    """Both methods answer each of 20 prompts 5 times; what differs is the luck of a prompt, not the method."""
    rng, prompts = np.random.default_rng(6), np.repeat(np.arange(20), 5)
    kept, ignored = [], []
    for trial in range(300):
        a, b = (np.repeat(rng.random(20), 5) + 0.02 * rng.random(100) for _ in range(2))
        a, b = np.clip(a, 0, 1), np.clip(b, 0, 1)
        kept.append(paired_difference(a, b, clusters=prompts, seed=trial, resamples=300).p_value < 0.05)
        ignored.append(paired_difference(a, b, seed=trial, resamples=300).p_value < 0.05)
    assert np.mean(kept) <= 0.08
    assert np.mean(ignored) > 0.2


def test_the_interval_of_a_difference_covers_the_true_one() -> None:
    rng, covered = np.random.default_rng(8), []
    for trial in range(300):
        luck = rng.random(30)
        a = np.clip(luck + 0.1 + 0.2 * rng.standard_normal(30), 0, 1)
        b = np.clip(luck + 0.2 * rng.standard_normal(30), 0, 1)
        result = paired_difference(a, b, seed=trial, resamples=400)
        covered.append(result.low <= TRUE_GAP <= result.high)
    assert 0.90 <= np.mean(covered) <= 0.98


def _true_gap() -> float:
    rng = np.random.default_rng(9)
    luck = rng.random(400_000)
    a = np.clip(luck + 0.1 + 0.2 * rng.standard_normal(luck.size), 0, 1)
    return float((a - np.clip(luck + 0.2 * rng.standard_normal(luck.size), 0, 1)).mean())


TRUE_GAP = _true_gap()
