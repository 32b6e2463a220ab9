"""Cutting text into units, and hiding needles between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.benchmarks.ruler.haystack import MAX_CHARACTERS, MAX_WORDS, Haystack, is_spaced, sentences
from indexmem.errors import UserError


def test_sentences_end_at_stops_and_closing_quotes():
    text = 'He said "stop."  Then he   left!\nWhy? See e.g. the map. (It is old.) Version 2.5 is out.'
    assert sentences(text) == [
        'He said "stop."',
        "Then he left!",
        "Why?",
        "See e.g. the map.",
        "(It is old.)",
        "Version 2.5 is out.",
    ]


@given(st.text(alphabet="ab AB.!?\"'\n\t", min_size=1))
def test_sentences_keep_every_word_and_stay_short(text):
    if not text.split():
        with pytest.raises(UserError, match="haystack text is empty"):
            sentences(text)
        return
    found = sentences(text)
    assert " ".join(found).split() == text.split()
    assert all(0 < len(sentence.split()) <= MAX_WORDS for sentence in found)


def test_text_without_stops_is_cut_by_words():
    assert [len(sentence.split()) for sentence in sentences("word " * (2 * MAX_WORDS + 3))] == [MAX_WORDS, MAX_WORDS, 3]


def test_chinese_and_japanese_sentences_end_in_full_width_marks():
    text = "\u5317\u4eac\u3002\u4f60\u597d\uff1f\u300c\u306f\u3044\u3002\u300d\u3068\uff01\n\u7d42 and on."
    assert sentences(text) == [
        "\u5317\u4eac\u3002",
        "\u4f60\u597d\uff1f",
        "\u300c\u306f\u3044\u3002\u300d",
        "\u3068\uff01",
        "\u7d42 and on.",
    ]
    assert not is_spaced(text)


def test_text_without_spaces_and_marks_is_cut_by_characters():
    text = "\u5b57" * (2 * MAX_CHARACTERS + 7)
    assert [len(unit) for unit in sentences(text)] == [MAX_CHARACTERS, MAX_CHARACTERS, 7]
    assert "".join(sentences(text)) == text
    assert not is_spaced(text)


def test_text_with_spaces_is_cut_as_ever():
    text = f"A word of {'x' * 2 * MAX_CHARACTERS} is long, and yet words are set apart. So it is one."
    assert sentences(text) == [text[: text.index(" So")], "So it is one."]
    assert is_spaced(text)


def test_needles_stand_at_their_share_of_the_units():
    haystack = Haystack(units=list("abcd"), tokens=[1] * 4, separator=" ")
    text = haystack.with_needles(4, [(1.0, "LAST"), (0.0, "FIRST"), (0.5, "MIDDLE"), (0.6, "NEXT")])
    assert text == "FIRST a b MIDDLE NEXT c d LAST"


def test_units_start_anywhere_and_cycle():
    haystack = Haystack(units=list("abc"), tokens=[1, 2, 3], separator="-").starting_at(2)
    assert haystack.with_needles(5, []) == "c-a-b-c-a"
    assert haystack.tokens == [3, 1, 2]
