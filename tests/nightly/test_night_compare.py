"""What makes a difference a regression, on tables small enough to see through."""

import numpy as np
import pytest

from indexmem.config.nightly import CompareConfig
from indexmem.nightly.compare import Pair, SuiteNights, regressions
from indexmem.nightly.rows import NightCell

CONFIG = CompareConfig(level=0.05, minimum_effect=0.1)


def pair(tonight: list[float], *earlier: list[float]) -> Pair:
    return Pair("suite", "knorm", "50%", "niah", np.array([tonight, *earlier], float).T)


def found(one: Pair, config: CompareConfig = CONFIG) -> list:
    return regressions([[one], []], config)


def test_a_large_certain_loss_is_a_regression():
    (change,) = found(pair([0] * 12 + [1] * 8, [1] * 20, [1] * 20))
    assert (change.before, change.now, change.samples) == (1.0, 0.4, 20)
    assert change.where == "50%, niah"
    assert change.p_value == pytest.approx(2 * 3.0**-12)


def test_a_certain_loss_below_the_minimum_is_none():
    many = pair([0] * 30 + [1] * 970, [1] * 1000, [1] * 1000)
    assert found(many) == []
    assert len(found(many, CONFIG.model_copy(update={"minimum_effect": 0.02}))) == 1


def test_a_large_loss_on_few_samples_is_noise():
    assert found(pair([0, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1])) == []


def test_a_loss_that_one_of_the_earlier_nights_had_too_is_wandering():
    good, bad = [1] * 40, [0] * 20 + [1] * 20
    assert found(pair(bad, good, good, good))
    assert found(pair(bad, good, good, bad)) == []


def test_nights_without_a_sample_are_left_out_of_its_mean():
    one = pair([0.0, 1.0], [1.0, np.nan], [0.5, 1.0])
    assert one.before_S.tolist() == [0.75, 1.0]
    assert one.effect == -0.375


def test_only_common_samples_are_laid_side_by_side():
    cell = NightCell("knorm", "50%", "niah", "build")
    earlier = [{cell: {"a": 0.0, "gone": 1.0}}, {cell: {"b": 0.5}}]
    (one,) = SuiteNights("suite", {cell: {"a": 1.0, "b": 0.0, "new": 1.0}}, earlier).cell_pairs()
    assert one.samples == ["a", "b"]
    np.testing.assert_array_equal(one.scores_SN, [[1.0, 0.0, np.nan], [0.0, np.nan, 0.5]])


def test_a_cell_is_compared_with_the_newest_nights_that_have_it():
    """It failed for two nights: those before are its reference, and the one before these tells of the spread."""
    cell, other = (NightCell("knorm", budget, "niah", "build") for budget in ("50%", "75%"))
    earlier = [{other: {"a": 1.0}}, {}, {cell: {"a": 0.9}}, {cell: {"a": 0.8}}, {cell: {"a": 0.7}}]
    (one,) = SuiteNights("suite", {cell: {"a": 0.5}}, earlier, nights=2).cell_pairs()
    assert one.scores_SN.tolist() == [[0.5, 0.9, 0.8]]
    assert one.older_SN.tolist() == [[0.7]]


def test_another_build_of_a_benchmark_is_another_cell():
    scores = {"niah/0": 1.0}
    old, new = NightCell("knorm", "50%", "niah", "build-1"), NightCell("knorm", "50%", "niah", "build-2")
    nights = SuiteNights("suite", {new: scores}, [{old: scores}])
    assert nights.cell_pairs() == nights.method_pairs() == []


def test_a_method_is_compared_over_the_budgets_that_both_have():
    cells = [NightCell("knorm", budget, "niah", "build") for budget in ("50%", "75%", "90%")]
    tonight = {cell: {"niah/0": score} for cell, score in zip(cells, (1.0, 0.0, 0.0))}
    earlier = {cell: {"niah/0": 1.0} for cell in cells[:2]}
    (one,) = SuiteNights("suite", tonight, [earlier]).method_pairs()
    assert one.scores_SN.tolist() == [[0.5, 1.0]]
