"""A RULER text with questions and answers -> token ids and loss weights. Nothing here is drawn as evaluation draws it.

The text comes from the benchmark's own generator, so that every blank is as in evaluation; seeds, haystacks and people
do not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from transformers import PreTrainedTokenizerBase

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.ruler import common_words
from indexmem.benchmarks.ruler.corpora import Corpus
from indexmem.benchmarks.ruler.invented import one_document, two_documents
from indexmem.benchmarks.ruler.qa import DOCUMENT_TOKENS, GeneratedQuestions
from indexmem.benchmarks.ruler.suite import FIXED_TASKS
from indexmem.benchmarks.ruler.task import Draft, DrawText, RulerTask
from indexmem.models.prompt import PromptFormat, encode
from indexmem_testbed.exchanges import MANY_NEEDLES, Exchange, read

# Loss weights, in tenths.
UNKNOWABLE, TEXT, COPY, ANSWER = 0, 1, 3, 10

FEWEST_PEOPLE = 4
CONTEXT_SHARE = (0.5, 0.95)  # of a document, the rest of which are questions and answers
ANSWER_ROOM = 64  # tokens of the longest answer, a list of ten words
CHARACTERS_PER_TOKEN = 5  # more than the tokenizer makes of any text: an excerpt of so many fills a haystack


@dataclass(frozen=True, kw_only=True)
class FewQuestions(GeneratedQuestions):
    """As in evaluation, but with no more people than one context can mention: each context has its own."""

    def corpus(self, build: BuildContext) -> Corpus:
        """A world made for `build.seed`."""
        make = one_document if self.documents == 1 else two_documents
        return make(max(FEWEST_PEOPLE, build.length // (2 * DOCUMENT_TOKENS)), build.seed)


TASKS: Mapping[str, RulerTask] = MappingProxyType(
    {task.name: task for task in (*FIXED_TASKS, *MANY_NEEDLES)}
    | {f"qa_{documents}": FewQuestions(name=f"qa_{documents}", documents=documents) for documents in (1, 2)}
)


@dataclass(frozen=True)
class Document:
    """ids [n] and the weight of predicting each of them, in tenths [n]."""

    ids: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return self.ids.size

    @classmethod
    def of(cls, parts: Sequence[tuple[Sequence[int], int]]) -> Document:
        """From (ids, their weight) pairs."""
        return cls(
            np.concatenate([np.asarray(ids, dtype=np.int16) for ids, _ in parts]),
            np.concatenate([np.full(len(ids), weight, dtype=np.uint8) for ids, weight in parts]),
        )


@dataclass(frozen=True)
class DocumentMaker:
    """Makes documents of any RULER task from the text in `haystack`."""

    tokenizer: PreTrainedTokenizerBase
    haystack: str

    def make(self, task: str, length: int, rng: random.Random, asked: int | None = None) -> Document | None:
        """A document of at most `length` tokens: a context, then as many of its questions as fit, or `asked` of them.

        None when the task does not fit.
        """
        drawn = self._drawn(task, length, rng)
        share = rng.uniform(*CONTEXT_SHARE) if asked is None else 1.0
        fitted = self._fitted(drawn, int(share * (length - ANSWER_ROOM)), length)
        if fitted is None:
            return None
        context = self._ids(fitted)
        parts = [(context, TEXT)]
        room = length - len(context)
        for exchange in read(task, fitted, drawn.asked[0].question, rng)[:asked]:
            question, answer = self._exchange(exchange)
            room -= len(question) + len(answer)
            if room < 0:
                break
            parts += [(question, TEXT), (answer, ANSWER)]
        return Document.of(parts) if len(parts) > 1 else None

    def excerpt(self, length: int, rng: random.Random) -> str:
        """A piece of the haystack that is long enough for a context, begun anywhere."""
        start = rng.randrange(max(1, len(self.haystack) - CHARACTERS_PER_TOKEN * length))
        return self.haystack[start : start + CHARACTERS_PER_TOKEN * length]

    @cached_property
    def _word_lists(self) -> Mapping[bool, DrawText]:
        """Of common words extraction, at RULER's lengths and below: slow to prepare and equal for all contexts."""
        lengths = {False: common_words.SHORT - 1, True: common_words.SHORT}
        builds = {long: BuildContext(self.tokenizer, length, 0, "") for long, length in lengths.items()}
        return {long: TASKS["cwe"].drawing(build) for long, build in builds.items()}

    def _drawn(self, task: str, length: int, rng: random.Random) -> Draft:
        seed, excerpt = rng.getrandbits(62), self.excerpt(length, rng)
        if task == "cwe":
            return self._word_lists[length >= common_words.SHORT](seed)
        return TASKS[task].drawing(BuildContext(self.tokenizer, length, seed, excerpt))(0)

    def _fitted(self, draft: Draft, wanted: int, length: int) -> str | None:
        """The context with as many units as `wanted` tokens hold, or the fewest that it needs within `length`."""
        (asked,) = draft.asked
        question = PromptFormat.of(self.tokenizer).question(asked.question, asked.answer_prefix)
        base = len(self._ids(draft.context(0))) + len(encode(self.tokenizer, question))
        most = draft.most or length
        tokens = np.resize(draft.unit_tokens, min(most, length))
        units = max(int(np.searchsorted(np.cumsum(tokens), wanted - base, side="right")), draft.least)
        context = draft.context(units)
        return context if len(self._ids(context)) < length else None

    def _ids(self, context: str) -> list[int]:
        return encode(self.tokenizer, PromptFormat.of(self.tokenizer).context(context))

    def _exchange(self, exchange: Exchange) -> tuple[list[int], list[int]]:
        question = PromptFormat.of(self.tokenizer).question(exchange.question, exchange.answer_prefix)
        end = self.tokenizer.eos_token_id
        return encode(self.tokenizer, question), [*encode(self.tokenizer, exchange.answer), end]
