"""The spread of nights against Student's t, computed by hand."""

import numpy as np
import pytest
from scipy import stats

from indexmem.nightly.significance import Wander


def nights(tonight: float, *earlier: float, samples: int = 4) -> np.ndarray:
    """Every sample has the night's level, plus an offset of its own."""
    return np.linspace(0, 0.1, samples)[:, None] + np.array([tonight, *earlier])


def tail(scores_SN: np.ndarray, least: float = 0.0) -> float:
    return Wander.of(scores_SN).tail(least)


def test_a_night_is_judged_by_the_spread_of_the_nights_before():
    """Levels 0.5, 0.6, 0.7: mean 0.6, deviation 0.1. 0.369 is t = -2 away with 2 degrees of freedom: p = 0.0918."""
    gap = 2 * 0.1 * (1 + 1 / 3) ** 0.5
    assert tail(nights(0.6 - gap, 0.5, 0.6, 0.7)) == pytest.approx(0.09175, abs=1e-4)
    assert tail(nights(0.6 + gap, 0.5, 0.6, 0.7)) == pytest.approx(1 - 0.09175, abs=1e-4)
    assert tail(nights(0.6, 0.5, 0.6, 0.7)) == pytest.approx(0.5)


def test_nights_that_agree_stand_in_nobodys_way():
    assert tail(nights(0.5, 0.6, 0.6, 0.6)) == 0.0
    assert tail(nights(0.6, 0.6, 0.6)) == 1.0


def test_one_night_has_no_spread():
    assert tail(nights(0.5, 0.6)) == 0.0
    assert tail(np.array([[0.5, 0.6, np.nan], [0.4, 0.5, np.nan]])) == 0.0


def test_missing_samples_do_not_move_a_nights_level():
    """An easy sample that one night lacks: its level is that of the samples that it has."""
    scores_SN = nights(0.3, 0.5, 0.5, 0.5)
    scores_SN[3, 2] = np.nan
    assert tail(scores_SN) == 0.0


def test_a_part_moves_no_less_than_the_whole():
    """Two nights that agree in one cell by chance, of a method that moved by 0.1."""
    assert tail(nights(0.4, 0.6, 0.6), 0.1) == pytest.approx(tail(nights(0.4, 0.6 + 0.1 / 2**0.5, 0.6 - 0.1 / 2**0.5)))
    assert tail(nights(0.4, 0.6, 0.6), 0.1) > 0.1


def test_older_nights_tell_the_spread_and_are_not_compared_with():
    """Levels 0.6, 0.6 of the reference and 0.4, 0.5, 0.6 before them: a gap to 0.6, the spread of all five."""
    scores_SN = nights(0.3, 0.6, 0.6, 0.4, 0.5, 0.6)
    wander = Wander.of(scores_SN, reference=2)
    assert wander.gap == pytest.approx(-0.3)
    assert wander.spread == pytest.approx(np.std([0.6, 0.6, 0.4, 0.5, 0.6], ddof=1))
    assert (wander.nights, wander.known) == (2, 5)
    error = wander.spread * (1 + 1 / 2) ** 0.5
    assert wander.tail() == pytest.approx(stats.t.cdf(-0.3 / error, 4))
    assert wander.tail() < tail(nights(0.3, 0.6, 0.6 - wander.spread * 2**0.5)), "two nights know little of a spread"
