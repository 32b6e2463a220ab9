"""RULER's frequent words extraction (fwe): coded words whose counts follow a zeta distribution; name the top three.

With N words in all, rank k comes floor(N * k^-alpha / zeta(alpha)) times; rank 1 is written as dots and does not
count. Growing N by one adds at most a few words: these are a unit of filler, at places of their own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.ruler.fit import tokens_of_each
from indexmem.benchmarks.ruler.task import Asked, Draft, DrawText, RulerTask
from indexmem.benchmarks.ruler.words import distinct, draw_code

INTRO = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
QUESTION = (
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
ANSWER_PREFIX = "Answer: According to the coded text above, the three most frequently appeared words are:"

DOTS = "..."
ZETA_2 = np.pi**2 / 6
TOP = 3
TOKENS_PER_WORD = 50  # of the whole length, for each word of the vocabulary
FEWEST_WORDS = 10  # of a vocabulary
CLEAR = 73  # words in all from which on ranks 2 to 5 have different counts, at alpha = 2


@dataclass(frozen=True)
class Growth:
    """How a text grows: `ranks` [words] in order of their arrival, and after each unit how many words there are."""

    ranks: np.ndarray
    ends: np.ndarray
    least: int  # units in which the top three are clear

    @classmethod
    def of(cls, vocabulary: int, words: int) -> Growth:
        """Up to N = `words`."""
        share = np.arange(1, vocabulary + 1, dtype=np.float64) ** -2 / ZETA_2
        counts = np.floor(words * share).astype(int)
        ranks = np.repeat(np.arange(vocabulary), counts)
        nth = np.concatenate([np.arange(1, count + 1) for count in counts])
        arrival = np.ceil(nth / share[ranks])  # the smallest N with this many of the rank
        order = np.argsort(arrival, kind="stable")
        arrivals, ends = np.unique(arrival[order], return_index=True)
        ends = np.append(ends[1:], order.size)
        return cls(ranks[order], ends, 1 + int(np.searchsorted(arrivals, CLEAR)))


@dataclass(frozen=True, kw_only=True)
class FrequentWords(RulerTask):
    """The three most frequent of many coded words."""

    max_new_tokens: int = 50

    def drawing(self, build: BuildContext) -> DrawText:
        """The coded words of a sample, and their order."""
        vocabulary = max(build.length // TOKENS_PER_WORD, FEWEST_WORDS)
        growth = Growth.of(vocabulary, max(build.length, 2 * CLEAR))
        return lambda index: _draw(self.rng(index, build), vocabulary, growth, build)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """Nothing but the recipe."""
        return {}


def _draw(rng: random.Random, vocabulary: int, growth: Growth, build: BuildContext) -> Draft:
    places = np.random.default_rng(rng.getrandbits(64)).random(growth.ranks.size)
    words = [DOTS, *distinct(draw_code, vocabulary - 1, rng, absent_from=INTRO + QUESTION + ANSWER_PREFIX)]
    tokens = np.array(tokens_of_each([f" {word}" for word in words], build.tokenizer))
    return Draft(
        context=lambda units: f"{INTRO}{_text(words, growth, places, units)}\n",
        unit_tokens=np.add.reduceat(tokens[growth.ranks], np.append(0, growth.ends[:-1])).tolist(),
        asked=(Asked(QUESTION, ANSWER_PREFIX, tuple(words[1 : 1 + TOP])),),
        least=growth.least,
        most=growth.ends.size,
    )


def _text(words: Sequence[str], growth: Growth, places: np.ndarray, units: int) -> str:
    count = growth.ends[units - 1] if units else 0
    return " ".join(words[rank] for rank in growth.ranks[:count][np.argsort(places[:count], kind="stable")])
