"""What a comparison can find: closed forms, and simulation of the very test that the tables use."""

from __future__ import annotations

import math

import numpy as np
import pytest

from indexmem.results.comparison import paired_difference
from indexmem.results.power import minimum_detectable_difference, must_agree

Z = 1.959964 + 0.841621  # 95 % two-sided, 80 % power


def test_the_closed_form_by_hand() -> None:
    a = [1.0, 0.0] * 50  # differences of 1 and 0: standard deviation 0.5025 at n = 100
    assert minimum_detectable_difference(a, [0.0] * 100) == pytest.approx(Z * 0.502519 / 10, abs=1e-4)


def test_strata_weigh_the_same() -> None:
    rng = np.random.default_rng(0)
    a, strata = rng.random(300), np.repeat([0, 1], [100, 200])
    parts = [a[strata == label] for label in (0, 1)]
    error = math.sqrt(sum(part.var(ddof=1) / part.size for part in parts)) / 2
    assert minimum_detectable_difference(a, np.zeros(300), strata=strata) == pytest.approx(Z * error, rel=1e-5)


def test_repeats_do_not_count_as_samples() -> None:
    a, b = np.random.default_rng(1).random((2, 40))
    once = minimum_detectable_difference(a, b)
    clusters = np.repeat(np.arange(40), 5)
    five_times = minimum_detectable_difference(np.repeat(a, 5), np.repeat(b, 5), clusters=clusters)
    assert five_times == pytest.approx(once)
    assert minimum_detectable_difference(np.repeat(a, 5), np.repeat(b, 5)) < once


def test_answers_that_agree_everywhere_still_hide_a_difference() -> None:
    assert minimum_detectable_difference([1.0] * 20, [1.0] * 20) == pytest.approx(6 / 20)
    assert minimum_detectable_difference([1.0] * 3, [1.0] * 3) == 1.0


def test_more_comparisons_need_more() -> None:
    a, b = np.random.default_rng(2).random((2, 60))
    found = [minimum_detectable_difference(a, b, comparisons=m) for m in (1, 5, 50)]
    assert found == sorted(found) and found[0] < found[2]
    assert minimum_detectable_difference(a, b, power=0.95) > found[0]


@pytest.mark.parametrize("level", [0.05, 0.01, 0.001])
def test_fewer_samples_than_must_agree_reach_no_significance(level: float) -> None:
    fewest = must_agree(level)
    assert 2 ** (1 - fewest) < level <= 2 ** (2 - fewest)
    assert paired_difference([1] * (fewest - 1), [0] * (fewest - 1), resamples=20_000).p_value > 0.8 * level


@pytest.mark.parametrize(("n", "discordant"), [(200, 0.5), (150, 0.3)])
def test_the_test_finds_this_difference_four_times_in_five(n: int, discordant: float) -> None:
    """0/1 scores that differ for a share of the samples, in favour of a by the detectable difference."""
    rng = np.random.default_rng(4)
    difference = Z * math.sqrt(discordant / n)
    for _ in range(30):  # the spread shrinks as the difference grows: iterate to the fixed point
        difference = Z * math.sqrt((discordant - difference**2) / n)
    chances = [(discordant + difference) / 2, (discordant - difference) / 2]
    found = []
    for trial in range(250):
        side = rng.choice([1, -1, 0], n, p=[*chances, 1 - sum(chances)])
        result = paired_difference(side == 1, side == -1, seed=trial, resamples=400)
        found.append(result.p_value < 0.05)
        if trial == 0:
            claimed = minimum_detectable_difference(side == 1, side == -1)
            assert claimed == pytest.approx(difference, rel=0.3)
    assert 0.7 <= np.mean(found) <= 0.9
