"""RULER's string matches, their edges and their known weakness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.benchmarks.scorers import string_match_all, string_match_part


def test_all_is_the_share_of_references_found():
    assert string_match_all("the numbers are 111 and 333.", ["111", "222", "333", "444"]) == 0.5


def test_part_needs_only_one():
    assert string_match_part("Normandy, in France", ["Paris", "France"]) == 1.0
    assert string_match_part("Normandy", ["Paris", "France"]) == 0.0


@pytest.mark.parametrize("score", [string_match_all, string_match_part])
def test_case_is_ignored_on_both_sides(score):
    assert score("the ANSWER is AbC", ["aBc"]) == 1.0


@pytest.mark.parametrize("score", [string_match_all, string_match_part])
@pytest.mark.parametrize("prediction", ["", "   ", "\x00\x1f\n"])
def test_an_empty_answer_scores_zero(score, prediction):
    assert score(prediction, ["1"]) == 0.0


@pytest.mark.parametrize("control", ["\x00", "\x07", "\t", "\x1f"])
def test_a_control_character_separates_and_does_not_vanish(control):
    """Deleting it, as kvpress does, would join the halves into a hit."""
    assert string_match_all(f"123{control}4567", ["1234567"]) == 0.0
    assert string_match_all(f"1234567{control}</s>", ["1234567"]) == 1.0


def test_known_weakness_a_longer_number_counts_as_a_hit():
    assert string_match_all("912345", ["12345"]) == 1.0
    assert string_match_part("category", ["cat"]) == 1.0


@given(st.text(), st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_scores_stay_in_range_and_part_bounds_all(prediction, references):
    share, any_hit = string_match_all(prediction, references), string_match_part(prediction, references)
    assert 0.0 <= share <= any_hit <= 1.0


def test_no_references_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError, match="references"):
        string_match_all("anything", [])
