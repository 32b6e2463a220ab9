"""Generated texts: full of values that only their tokens can keep, and of nothing that a benchmark asks for."""

from __future__ import annotations

import json
import random
import re
from string import Formatter

import pytest

from indexmem.benchmarks import niah_map
from indexmem.benchmarks.ruler import common_words, frequent_words, haystack, invented, niah, qa, variables
from indexmem.config.text import BUILT_IN, MIXTURE
from indexmem.texts.documents import BUILTIN_TEXTS, documents_hash, documents_of
from indexmem.texts.generated.facts import MOST_FACTS, STORIES, _similar_stories, _strewn
from indexmem.texts.generated.layouts import BLOCKS, LINES, OBJECTS, TABLES
from indexmem.texts.generated.records import THEMES
from indexmem.texts.generated.values import SPELLINGS, ValueDraw, vocabulary

WORDS = ["apple", "stone", "river"]
ASKED = (
    *(niah.NEEDLE, niah_map.NEEDLE, niah_map.QUESTION, *niah_map.KEYWORDS, haystack.NOISE_LINE),
    *(text for module in (common_words, frequent_words, variables) for text in (module.INTRO, module.QUESTION)),
    *(module.ANSWER_PREFIX for module in (common_words, frequent_words, variables)),
    *(qa.INTRO, invented.BIRTH, invented.DIRECTOR, invented.SEAT),
)


def wording(templates: tuple[str, ...]) -> set[str]:
    """What templates say in three words or more between slots and ends of sentences, in small letters."""
    pieces = {piece.strip(" ,") for text in templates for piece in re.split(r"\{\w*\}|[.:?!\n]", text.lower())}
    pieces -= {"at the sea"}  # which says nothing
    return {piece for piece in pieces if len(piece.split()) >= 3} | {"special magic", "coded word", "dolores park"}


def draw(seed: int = 0) -> ValueDraw:
    return ValueDraw(random.Random(seed), WORDS)


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("code", 261, "16fb88bf40e29e92"),
        ("records", 1500, "ed34b9ee545aec1c"),
        ("facts", 1076, "ebd918cec369ea09"),
    ],
)
def test_they_are_the_same_everywhere(name, count, expected):
    """Runs are named after their content: other text, other names."""
    made = documents_of(name)
    assert len(made) == count and documents_hash(made) == expected
    assert sum(map(len, made)) < 4_000_000


@pytest.mark.parametrize("name", [text.name for text in MIXTURE])
def test_no_wording_of_a_benchmark_is_trained_on(name):
    text = " ".join(" ".join(documents_of(name)).lower().split())
    phrases = wording(ASKED)
    assert len(phrases) > 30 and "the grass is green" in phrases
    assert [phrase for phrase in sorted(phrases) if phrase in text] == []
    assert not re.search(r"\bvar [a-z]+ = ", text), "variable tracking"
    assert not re.search(r"\bdocument \d+:", text), "question answering"


def test_the_held_out_essays_are_not_in_what_is_made_of_the_others():
    sentences = {
        s for essay in documents_of("essays-heldout") for s in re.split(r"(?<=[.!?])\s+", essay) if len(s) > 60
    }
    assert len(sentences) > 500
    made = "\n".join(documents_of("facts") + documents_of("records"))
    assert [sentence for sentence in sentences if sentence in made] == []


def test_what_is_made_is_full_of_numbers_and_prose_is_not():
    def digits(name: str) -> float:
        text = "".join(documents_of(name))
        return sum(character.isdecimal() for character in text) / len(text)

    assert digits("king-james") == 0 and digits("essays-train") < 0.005
    assert digits("records") > 0.15 and digits("facts") > 0.01
    lengths = {len(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", "\n".join(documents_of("records")))}
    assert lengths >= set(range(1, 10))


def test_every_kind_that_is_asked_for_is_spelled():
    slots = {slot for story in STORIES for text in story for _, slot, _, _ in Formatter().parse(text) if slot}
    assert {slot.partition("_")[0] for slot in slots} <= set(SPELLINGS)
    assert {field.split(":")[1] for theme in THEMES.values() for field in theme.split()} <= set(SPELLINGS)
    for kind, spellings in SPELLINGS.items():
        assert all(spelling(draw()).strip() for spelling in spellings), kind


def test_entries_of_a_layout_differ_by_their_values_alone():
    fields = ["key", "owner", "count"]
    for layout in (*TABLES, *OBJECTS, *BLOCKS, *LINES):
        one, two = layout.entry(fields, ["AB1", "Mara", "7"]), layout.entry(fields, ["CD2", "Omar", "8"])
        assert one.replace("AB1", "CD2").replace("Mara", "Omar").replace("7", "8") == two
    assert json.loads(OBJECTS[0].entry(fields, ["AB1", "Mara", "07"])) == {"key": "AB1", "owner": "Mara", "count": "07"}


def test_a_document_has_its_prose_and_facts_in_their_order():
    passage = ["One.", " Two.", " Three.", " Four."]
    for seed in range(200):
        text = _strewn(draw(seed), passage)
        assert re.search(r"One\..* Two\..* Three\..* Four\.", text, re.DOTALL)
        assert text.startswith("One.") and len(text) > len("".join(passage))
    assert MOST_FACTS == 10


def test_a_story_keeps_its_names_and_is_told_of_several():
    told = [_similar_stories(draw(seed)) for seed in range(300)]
    joined = [sentences for sentences in told if any(" joined " in sentence for sentence in sentences)]
    assert {len(sentences) for sentences in joined} >= {3, 6}
    for sentences in joined:
        each = len(sentences) // 3
        for joins, badge in zip(sentences, sentences[each : 2 * each]):
            assert f"The badge of {joins.split(' joined ')[0].strip()} " in badge


def test_words_are_those_that_follow_an_article():
    assert vocabulary(["the river and a stone " * 6, "the other the roses " * 6, "an apple " * 5]) == [
        "other",
        "river",
        "stone",
    ]


def test_the_names_of_built_in_texts_are_those_that_a_spec_knows():
    assert set(BUILT_IN) == set(BUILTIN_TEXTS) > {text.name for text in MIXTURE}
