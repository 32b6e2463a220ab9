"""The exact test against counting all orders of the nights by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.nightly.significance import lower_tail, upper_tail

SCORES = st.sampled_from([0.0, 0.25, 1.0, np.nan])


def counted(scores_SN: np.ndarray) -> float:
    """Share of all ways to choose tonight's score of each sample whose sum is at most the one seen."""
    choices = [[value for value in row if np.isfinite(value)] for row in scores_SN]
    sums = np.array([sum(chosen) for chosen in product(*choices)])
    return float((sums <= scores_SN[:, 0].sum() + 1e-9).mean())


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), SCORES, SCORES), min_size=1, max_size=6))
def test_tails_are_those_of_all_orders(rows):
    scores_SN = np.array(rows)
    assert lower_tail(scores_SN) == pytest.approx(counted(scores_SN))
    assert upper_tail(scores_SN) == pytest.approx(counted(1 - scores_SN))


def test_one_earlier_night_is_the_sign_flip_test():
    assert lower_tail(np.array([[0.0, 1.0]] * 10 + [[1.0, 1.0]] * 30)) == pytest.approx(2**-10)


def test_nights_that_agree_say_nothing():
    assert lower_tail(np.ones((40, 6))) == 1.0
    assert lower_tail(np.full((1, 2), 0.3)) == 1.0


def test_samples_of_a_group_change_places_together():
    """Ten lost samples of two texts: two units of three nights each."""
    scores_SN = np.array([[0.0, 1.0, 1.0]] * 10 + [[1.0, 1.0, 1.0]] * 10)
    texts = np.array(["a", "b"] * 5 + ["c"] * 10)
    assert lower_tail(scores_SN, texts) == pytest.approx(3.0**-2)
    assert lower_tail(scores_SN) == pytest.approx(3.0**-10)
    assert upper_tail(1 - scores_SN, texts) == pytest.approx(3.0**-2)


def test_a_night_that_lacks_a_sample_of_a_group_lacks_the_group():
    scores_SN = np.array([[0.0, 1.0, np.nan], [0.0, 1.0, 1.0], [0.5, 0.5, 0.5]])
    assert lower_tail(scores_SN, np.array(["a", "a", "b"])) == pytest.approx(1 / 2)


def test_p_values_are_far_below_what_resampling_can_show():
    scores_SN = np.ones((200, 6))
    scores_SN[:60, 0] = 0.0
    assert lower_tail(scores_SN) == pytest.approx(6.0**-60)
    assert upper_tail(scores_SN) == pytest.approx(1.0)


def test_a_sample_without_a_score_tonight_is_a_bug():
    with pytest.raises(AssertionError, match="not scores by night"):
        lower_tail(np.array([[np.nan, 1.0]]))
