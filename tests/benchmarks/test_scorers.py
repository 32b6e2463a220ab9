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


THREE = ("alpha-fox", "beta-owl", "gamma-elk")


@pytest.mark.parametrize(
    ("answer", "references", "all_found", "any_found"),
    [
        ("1. alpha-fox 2. beta-owl 3. gamma-elk", THREE, 1, 1),
        ("alpha-fox, alpha-fox, alpha-fox", THREE, 1 / 3, 1),
        ("gamma-elk alpha-fox beta-owl", THREE, 1, 1),
        ("alpha fox, beta owl, gamma elk", THREE, 0, 0),
        ("alpha\u2010fox", THREE, 0, 0),
        ("**Alpha-Fox**, `BETA-OWL`", THREE, 2 / 3, 1),
        ("alpha-fox\nbeta-owl\n\ngamma-elk", THREE, 1, 1),
        ("alpha-\nfox", THREE, 0, 0),
        ("not alpha-fox", THREE, 1 / 3, 1),
        ("alpha-foxes", THREE, 1 / 3, 1),
        ("alpha-fo", THREE, 0, 0),
        ("1234567", ("1234567",), 1, 1),
        ("1,234,567", ("1234567",), 0, 0),
        ("1234 567", ("1234567",), 0, 0),
        ("0001234567000", ("1234567",), 1, 1),
        ("123456", ("1234567",), 0, 0),
        (" 1234567<|im_end|>", ("1234567",), 1, 1),
        ("The special magic number is: 1234567.", ("1234567",), 1, 1),
        ("0F8FAD5B-D9CB-469F-A165-70867728950E", ("0f8fad5b-d9cb-469f-a165-70867728950e",), 1, 1),
        ("0f8fad5bd9cb469fa16570867728950e", ("0f8fad5b-d9cb-469f-a165-70867728950e",), 0, 0),
        ("ABCDE FGHIJ", ("ABCDE", "FGHIJ", "KLMNO", "PQRST", "UVWXY"), 2 / 5, 1),
        ("abcde=fghij=klmno=pqrst=uvwxy", ("ABCDE", "FGHIJ", "KLMNO", "PQRST", "UVWXY"), 1, 1),
        ("In 1066, the Normans", ("Normans", "the Normans", "1067"), 2 / 3, 1),
        ("İstanbul", ("istanbul",), 0, 0),
        ("STRASSE", ("straße",), 0, 0),
        ("caf\u00e9", ("cafe\u0301",), 0, 0),
        ("I do not know.", ("no",), 1, 1),
        ("yes\x00", ("yes",), 1, 1),
    ],
)
def test_tricky_answers(answer, references, all_found, any_found):
    assert string_match_all(answer, references) == pytest.approx(all_found)
    assert string_match_part(answer, references) == any_found


@pytest.mark.parametrize(
    ("answer", "as_ruler", "as_kvpress"),
    [("red\nfox", 0, 0), ("red \nfox", 0, 1), ("re\x07d fox", 0, 1), ("red fox\n", 1, 1), ("red\tfox", 0, 0)],
)
def test_kvpress_deletes_control_characters(answer, as_ruler, as_kvpress):
    for score in (string_match_all, string_match_part):
        assert score(answer, ["red fox"]) == as_ruler
        assert score(answer, ["red fox"], control="") == as_kvpress
