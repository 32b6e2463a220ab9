"""How often a night without change raises an alarm, and which losses are found. 80 cells, as in a real grid."""

import numpy as np
import pytest
from null_scores import METHODS, as_scores, null_nights, wandering_nights

from indexmem.config.nightly import CompareConfig
from indexmem.nightly.compare import SuiteNights, families_of, improvements, regressions

CONFIG = CompareConfig(nights=3, level=0.2, minimum_effect=0.0)
NIGHTS = 100


def alarms(nights_CSN: np.ndarray, config: CompareConfig = CONFIG) -> list:
    tonight, *earlier = (as_scores(night_CS) for night_CS in np.moveaxis(nights_CSN, 2, 0))
    return regressions(families_of([SuiteNights("suite", tonight, earlier)]), config)


def test_null_nights_raise_alarms_no_more_often_than_configured():
    rng = np.random.default_rng(0)
    rate = np.mean([bool(alarms(null_nights(4, 25, 0.5, rng))) for _ in range(NIGHTS)])
    assert rate <= CONFIG.level + 2 * (CONFIG.level * (1 - CONFIG.level) / NIGHTS) ** 0.5


def wandering_alarms() -> float:
    """Share of 60 nights with an alarm where three methods move by three points from night to night."""
    rng = np.random.default_rng(3)
    return float(np.mean([bool(alarms(wandering_nights(6, 40, 3, 0.03, rng), CompareConfig())) for _ in range(60)]))


def test_modules_that_move_every_night_raise_no_more_alarms_than_others():
    assert wandering_alarms() <= 0.01 + 2 * (0.01 * 0.99 / 60) ** 0.5


def test_without_the_spread_of_nights_every_fourth_night_would(monkeypatch):
    monkeypatch.setattr("indexmem.nightly.significance.Wander.tail", lambda wander, least_spread: 0.0)
    assert wandering_alarms() > 0.2


def test_a_module_that_falls_much_further_than_it_wanders_is_found():
    nights_CSN = wandering_nights(6, 60, 3, 0.005, np.random.default_rng(4))
    nights_CSN[:8, :40, 0] = 0.0
    found = alarms(nights_CSN, CompareConfig(nights=5))
    assert {change.method for change in found} == {METHODS[0]}


def test_without_adjustment_most_null_nights_would(monkeypatch):
    """The table is large enough for the test above to mean something."""
    monkeypatch.setattr("indexmem.nightly.compare.holm", np.asarray)
    rng = np.random.default_rng(0)
    assert np.mean([bool(alarms(null_nights(4, 25, 0.5, rng))) for _ in range(20)]) > 0.5


@pytest.mark.parametrize(("lost", "cells", "first"), [(0.5, 1, "50%"), (0.15, 8, None)])
def test_a_loss_is_found_and_nothing_else(lost, cells, first):
    """In one cell it shows there most, spread over a method's cells it shows in the method."""
    rng = np.random.default_rng(1)
    nights_CSN = null_nights(6, 60, 0.05, rng)
    for cell in range(cells):
        right = np.flatnonzero(nights_CSN[cell].all(axis=1))
        nights_CSN[cell, right[: round(lost * len(right))], 0] = 0.0
    found = alarms(nights_CSN, CompareConfig(nights=5))
    assert {change.method for change in found} == {METHODS[0]}
    assert first in {change.budget for change in found}
    assert (found[0].budget == first) or first is None
    assert all(change.low < change.effect < change.high < 0 for change in found)


def test_a_gain_is_an_improvement_and_no_alarm():
    nights_CSN = null_nights(6, 60, 0.05, np.random.default_rng(2))
    nights_CSN[:8, :, 1:] *= 0.2
    tonight, *earlier = (as_scores(night_CS) for night_CS in np.moveaxis(nights_CSN, 2, 0))
    families = families_of([SuiteNights("suite", tonight, earlier)])
    assert regressions(families, CompareConfig()) == []
    assert {change.method for change in improvements(families, CompareConfig())} == {METHODS[0]}
