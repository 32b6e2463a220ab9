"""RULER's needle-in-a-haystack family: one parameter table, one way to build a sample.

Tasks and wording follow RULER (Hsieh et al. 2024, arXiv 2404.06654; github.com/NVIDIA/RULER, Apache-2.0); the cut into
context, question and answer prefix is that of kvpress's RULER data set. Samples are equal in distribution, not byte
for byte. Differences: every sample starts at its own place in the essay text; filler is added by sentence or line, so
the length is exact; noise and needle haystacks place needles by the same 40 depths as essays; keys are single words
without profanities, and neither keys nor values occur in the text they are hidden in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.ruler.fit import largest_fit
from indexmem.benchmarks.ruler.haystack import NOISE_LINE, Haystack, sentences
from indexmem.benchmarks.ruler.words import distinct, draw_number, draw_uuid, draw_words, word_list
from indexmem.benchmarks.scorers import string_match_all
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

DEPTHS = tuple(step / 39 for step in range(40))

NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
ONE_ANSWER = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "What is the special magic {kind} for {query} mentioned in the provided text?",
    "The special magic {kind} for {query} mentioned in the provided text is",
)
MANY_ANSWERS = (
    "Some special magic {kind}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind}s afterwards.\n",
    "What are all the special magic {kind}s for {query} mentioned in the provided text?",
    "The special magic {kind}s for {query} mentioned in the provided text are",
)

DRAWS = MappingProxyType({"words": draw_words, "number": draw_number, "uuid": draw_uuid})

NEEDLE_TOKENS = 8  # fewer than any tokenizer makes of a needle: bounds how many distractors a budget can hold


@dataclass(frozen=True)
class Quiz:
    """One drawn sample, before its length is settled."""

    intro: str
    filler: Haystack
    needles: Sequence[tuple[float, str]]  # (depth, sentence)
    question: str
    answer_prefix: str
    references: tuple[str, ...]

    def context(self, units: int) -> str:
        """The text to be compressed, with `units` units of filler."""
        return self.intro + self.filler.with_needles(units, self.needles) + "\n"


@dataclass(frozen=True, kw_only=True)
class NeedleTask(Benchmark):
    """`keys` keys with `values` values each are hidden; the values of the first `queries` keys are asked for."""

    haystack: Literal["noise", "essay", "needle"] = "essay"
    key: Literal["words", "uuid"] = "words"
    value: Literal["number", "uuid"] = "number"
    keys: int = 1
    values: int = 1
    queries: int = 1
    max_new_tokens: int = 128
    protocol: str = "ruler"

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`. Each prompt is as long as whole units of filler allow."""
        prompt = PromptFormat.of(build.tokenizer)
        filler = self._filler(build)
        for index in range(count):
            yield self._fitted(self._draw(index, build, filler), index, build, prompt)

    def score(self, prediction: str, sample: Sample) -> float:
        """Share of the hidden values that the answer contains."""
        return string_match_all(prediction, sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The filler text, and the word lists, which change between releases of `wonderwords`."""
        words = [word_list("adjective"), word_list("noun")] if self.key == "words" else []
        return {"filler": content_hash(self._filler_text(build)), "words": content_hash(words)}

    def _filler_text(self, build: BuildContext) -> str:
        """Text that the samples quote."""
        return {"noise": NOISE_LINE, "essay": build.haystack, "needle": ""}[self.haystack]

    def _filler(self, build: BuildContext) -> Haystack | None:
        """Filler that all samples share; None when each one has its own."""
        if self.haystack == "essay":
            return Haystack.of(sentences(build.haystack), " ", build.tokenizer)
        return Haystack.of([NOISE_LINE], "\n", build.tokenizer) if self.haystack == "noise" else None

    def _draw(self, index: int, build: BuildContext, shared: Haystack | None) -> Quiz:
        """Keys, values, depths and filler of sample `index`."""
        rng = self.rng(index, build)
        hidden = self.keys * self.values
        distractors = 1 + build.length // NEEDLE_TOKENS if shared is None else 0
        text = self._filler_text(build)
        keys = distinct(DRAWS[self.key], self.keys + distractors, rng, absent_from=text)
        values = distinct(DRAWS[self.value], hidden + distractors, rng, absent_from=text)
        owners = [key for key in keys[: self.keys] for _ in range(self.values)] + keys[self.keys :]
        lines = [NEEDLE.format(kind=self.value, key=key, value=value) for key, value in zip(owners, values)]
        depths = rng.sample(DEPTHS, hidden)
        if shared is None:
            filler = Haystack.of(lines[hidden:], "\n", build.tokenizer)
        else:
            filler = shared.starting_at(rng.randrange(len(shared.units)))
        references = tuple(values[: self.queries * self.values])
        wording = ONE_ANSWER if len(references) == 1 else MANY_ANSWERS
        query = _listing(keys[: self.queries])
        intro, question, answer_prefix = (part.format(kind=self.value, query=query) for part in wording)
        return Quiz(intro, filler, list(zip(depths, lines)), question, answer_prefix, references)

    def _fitted(self, quiz: Quiz, index: int, build: BuildContext, prompt: PromptFormat) -> Sample:
        """`quiz` with as much filler as fits. Raises UserError when not even one unit does."""
        limit = self.generation_limit(build)
        reserved = limit + len(encode(build.tokenizer, prompt.question(quiz.question, quiz.answer_prefix)))

        def cost(units: int) -> int:
            return len(encode(build.tokenizer, prompt.context(quiz.context(units))))

        units = largest_fit(quiz.filler.tokens, cost, budget=build.length - reserved)
        if units == 0:
            least = cost(1)
            raise UserError(
                f"Benchmark '{self.name}' does not fit into {build.length} tokens: with the shortest haystack, sample "
                f"{index} takes {least} tokens of context and {reserved} of question and answer. "
                f"Set grid.length to at least {least + reserved}, or lower grid.max_new_tokens (now {limit})."
            )
        return Sample(
            id=f"{self.name}/{index}",
            benchmark=self.name,
            context=quiz.context(units),
            question=quiz.question,
            answer_prefix=quiz.answer_prefix,
            references=quiz.references,
            max_new_tokens=limit,
        )


def _listing(items: Sequence[str]) -> str:
    """ "a", or "a, b, and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f", and {items[-1]}"


NIAH_TASKS = (
    NeedleTask(name="niah_single_1", haystack="noise"),
    NeedleTask(name="niah_single_2"),
    NeedleTask(name="niah_single_3", value="uuid"),
    NeedleTask(name="niah_multikey_1", keys=4),
    NeedleTask(name="niah_multikey_2", haystack="needle"),
    NeedleTask(name="niah_multikey_3", haystack="needle", key="uuid", value="uuid"),
    NeedleTask(name="niah_multivalue", values=4),
    NeedleTask(name="niah_multiquery", keys=4, queries=4),
)
