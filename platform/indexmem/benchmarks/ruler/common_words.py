"""RULER's common words extraction (cwe): a numbered list in which ten words come more often than all others.

A unit of filler is one more uncommon word with all its occurrences, at places of their own: the list of n units is
that of n + 1 without them. Nothing else in a sample contains a common word, because the score looks for substrings:
neither another word nor, unlike in RULER, the question, which speaks of "common" words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.ruler.fit import tokens_of_each
from indexmem.benchmarks.ruler.task import Asked, Draft, DrawText, RulerTask
from indexmem.benchmarks.ruler.words import distinct, draw_words, word_list
from indexmem.config.spec import content_hash

INTRO = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
QUESTION = "Question: What are the 10 most common words in the above list?"
ANSWER_PREFIX = "Answer: The top 10 words that appear most often in the list are:"

COMMON = 10
SHORT = 4096  # tokens, below which words are repeated less


@dataclass(frozen=True)
class Repeats:
    """How often words come, in the list and in the example before it."""

    common: int
    other: int
    example_words: int
    example_common: int
    example_other: int

    @classmethod
    def at(cls, length: int) -> Repeats:
        """RULER's numbers for a length in tokens."""
        return cls(6, 1, 20, 3, 1) if length < SHORT else cls(30, 3, 40, 10, 3)


@dataclass(frozen=True)
class Vocabulary:
    """Words to choose from, and the tokens of each one and of each number in front of it."""

    words: Sequence[str]
    word_tokens: Sequence[int]
    number_tokens: Sequence[int]  # of " 1.", " 2.", ...


@dataclass(frozen=True, kw_only=True)
class CommonWords(RulerTask):
    """Ten words to be named, hidden by their frequency alone."""

    max_new_tokens: int = 120

    def drawing(self, build: BuildContext) -> DrawText:
        """The words of a sample, their order, and the solved example before them."""
        repeats = Repeats.at(build.length)
        most = 1 + max(build.length, SHORT) // (2 * repeats.other)  # an entry has two tokens or more
        vocabulary = _vocabulary(most + repeats.example_words + COMMON, repeats, build)
        return lambda index: _draw(self.rng(index, build), most, repeats, vocabulary)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The word list, which changes between releases of `wonderwords`."""
        return {"words": content_hash(_words())}


def _draw(rng: random.Random, most: int, repeats: Repeats, vocabulary: Vocabulary) -> Draft:
    order = rng.sample(range(len(vocabulary.words)), most + repeats.example_words + COMMON)
    text = "\n".join((INTRO, QUESTION, ANSWER_PREFIX, *(vocabulary.words[place] for place in order)))
    common = [place for place in order if text.count(vocabulary.words[place]) == 1][:COMMON]
    rest = [place for place in order if place not in common]
    example_places, others = rest[: repeats.example_words], rest[repeats.example_words :][:most]

    names = [vocabulary.words[place] for place in example_places]
    example = [(rng.random(), word) for word in names[:COMMON] for _ in range(repeats.example_common)]
    example += [(rng.random(), word) for word in names[COMMON:] for _ in range(repeats.example_other)]
    solved = f"{INTRO}{_numbered(example)}\n{QUESTION} {ANSWER_PREFIX} {_listed(names[:COMMON])}\n"

    frequent = [(rng.random(), vocabulary.words[place]) for place in common for _ in range(repeats.common)]
    rare = [(rng.random(), vocabulary.words[place]) for place in others for _ in range(repeats.other)]
    numbers = vocabulary.number_tokens[len(frequent) :]
    unit_tokens = [
        repeats.other * vocabulary.word_tokens[place] + sum(numbers[unit * repeats.other : (unit + 1) * repeats.other])
        for unit, place in enumerate(others)
    ]
    return Draft(
        context=lambda units: f"{solved}{INTRO}{_numbered(frequent + rare[: units * repeats.other])}\n",
        unit_tokens=unit_tokens,
        asked=(Asked(QUESTION, ANSWER_PREFIX, tuple(vocabulary.words[place] for place in common)),),
        most=most,
    )


def _words() -> list[str]:
    return sorted({word for kind in ("adjective", "noun", "verb") for word in word_list(kind)})


def _vocabulary(least: int, repeats: Repeats, build: BuildContext) -> Vocabulary:
    """The word list; where a long text needs more words than it has, adjective-noun pairs as well."""
    words = _words()
    words += distinct(draw_words, max(least - len(words), 0), random.Random(build.seed), absent_from="")
    entries = COMMON * repeats.common + least * repeats.other
    return Vocabulary(
        words,
        tokens_of_each([f" {word}" for word in words], build.tokenizer),
        tokens_of_each([f" {number}." for number in range(1, entries + 1)], build.tokenizer),
    )


def _numbered(places: Sequence[tuple[float, str]]) -> str:
    return _listed([word for _, word in sorted(places)])


def _listed(words: Sequence[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
