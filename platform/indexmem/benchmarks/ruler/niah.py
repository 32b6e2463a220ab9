"""RULER's needle-in-a-haystack family: one parameter table, one way to draw a sample.

Differences from RULER besides those named in task.py: every sample starts at its own place in the essay text; filler
is added by sentence or line, so the length is exact; noise and needle haystacks place needles by the same 40 depths as
essays; keys are single words without profanities, and neither keys nor values occur in the text they are hidden in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from indexmem.benchmarks.base import Benchmark, BuildContext
from indexmem.benchmarks.ruler.fit import tokens_of_each
from indexmem.benchmarks.ruler.haystack import NOISE_LINE, UNSPACED, Haystack, is_spaced, sentences
from indexmem.benchmarks.ruler.task import Asked, Draft, DrawText, RulerTask
from indexmem.benchmarks.ruler.words import distinct, draw_number, draw_uuid, draw_words, word_list
from indexmem.config.spec import content_hash

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
MEASURED_NEEDLES = 16  # distractors that are tokenised to estimate all of them, which are alike


@dataclass(frozen=True, kw_only=True)
class NeedleTask(RulerTask):
    """`keys` keys with `values` values each are hidden, and a question asks for the values of `queries` keys. A text
    has as many `questions`, each a sample, which ask for different keys."""

    haystack: Literal["noise", "essay", "needle"] = "essay"
    key: Literal["words", "uuid"] = "words"
    value: Literal["number", "uuid"] = "number"
    keys: int = 1
    values: int = 1
    queries: int = 1
    questions: int = 1
    conversation: bool = False  # in which they are asked one after another
    max_new_tokens: int = 128

    def drawing(self, build: BuildContext) -> DrawText:
        """Keys, values, depths and filler of a sample."""
        shared = self._filler(build)
        return lambda index: self._draw(index, build, shared)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The filler text, and the word lists, which change between releases of `wonderwords`."""
        words = [word_list("adjective"), word_list("noun")] if self.key == "words" else []
        text = self._filler_text(build)
        unspaced = {} if is_spaced(text) else {"unspaced": UNSPACED}
        told = {
            field: getattr(self, field)
            for field in ("haystack", "key", "value", "keys", "values", "queries", "conversation")
        }
        several = {} if self.questions == 1 else {"questions": self.questions, **told}  # which the name does not tell
        return {"filler": content_hash(text), "words": content_hash(words), **unspaced, **several}

    def _filler_text(self, build: BuildContext) -> str:
        """Text that the samples quote."""
        return {"noise": NOISE_LINE, "essay": build.haystack, "needle": ""}[self.haystack]

    def _filler(self, build: BuildContext) -> Haystack | None:
        """Filler that all samples share; None when each one has its own."""
        if self.haystack == "essay":
            return Haystack.of(sentences(build.haystack), " ", build.tokenizer)
        return Haystack.of([NOISE_LINE], "\n", build.tokenizer) if self.haystack == "noise" else None

    def _draw(self, index: int, build: BuildContext, shared: Haystack | None) -> Draft:
        rng = self.rng(index, build)
        hidden = self.keys * self.values
        distractors = 1 + build.length // NEEDLE_TOKENS if shared is None else 0
        text = self._filler_text(build)
        keys = distinct(DRAWS[self.key], self.keys + distractors, rng, absent_from=text)
        values = distinct(DRAWS[self.value], hidden + distractors, rng, absent_from=text)
        owners = [key for key in keys[: self.keys] for _ in range(self.values)] + keys[self.keys :]
        lines = [NEEDLE.format(kind=self.value, key=key, value=value) for key, value in zip(owners, values)]
        depths = rng.sample(DEPTHS, hidden)
        needles = list(zip(depths, lines))
        if shared is None:
            measured = tokens_of_each(
                ["\n" + line for line in lines[hidden : hidden + MEASURED_NEEDLES]], build.tokenizer
            )
            filler = Haystack(lines[hidden:], [-(-sum(measured) // len(measured))] * distractors, "\n")
        else:
            filler = shared.starting_at(rng.randrange(len(shared.units)))
        asked = tuple(self._asked(keys, values, depths, number) for number in range(self.questions))
        wording = ONE_ANSWER if self.questions * self.queries * self.values == 1 else MANY_ANSWERS
        intro = wording[0].format(kind=self.value)
        return Draft(
            context=lambda units: intro + filler.with_needles(units, needles) + "\n",
            unit_tokens=filler.tokens,
            asked=asked,
            conversation=self.conversation,
            most=distractors if shared is None else None,
        )

    def _asked(self, keys: Sequence[str], values: Sequence[str], depths: Sequence[float], number: int) -> Asked:
        """Question `number` of a text."""
        first = number * self.queries  # of its keys
        references = tuple(values[first * self.values : (first + self.queries) * self.values])
        question, answer_prefix = (ONE_ANSWER if len(references) == 1 else MANY_ANSWERS)[1:]
        told = {"kind": self.value, "query": _listing(keys[first : first + self.queries])}
        one_needle = len(references) == 1 and self.keys == self.questions
        labels: dict[str, Any] = {"depth": round(depths[first], 3)} if one_needle else {}
        if self.questions > 1 and not self.conversation:
            labels["position"] = 1 + sorted(depths).index(depths[first])  # of its first needle, in the text's order
        return Asked(question.format(**told), answer_prefix.format(**told), references, labels)


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


def niah_questions(
    *,
    questions: Annotated[int, Field(ge=2, le=len(DEPTHS))] = 10,
    haystack: Literal["noise", "essay", "needle"] = "essay",
    key: Literal["words", "uuid"] = "words",
    value: Literal["number", "uuid"] = "number",
    turns: bool = False,
) -> Sequence[Benchmark]:
    """Texts with `questions` of RULER's needles, each asked for by a question of its own; with `turns`, one after
    another in a conversation whose answers stay in the cache."""
    task = NeedleTask(
        name="niah_turns" if turns else "niah_questions",
        haystack=haystack,
        key=key,
        value=value,
        keys=questions,
        questions=questions,
        conversation=turns,
        version=2,
    )
    return (task,)
