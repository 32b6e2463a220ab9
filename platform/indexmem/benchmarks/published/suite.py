"""Published rows as samples: what all sets share. A set says what a row asks, and how an answer is scored."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any, Literal

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.longbench.prompts import Parts, without_middle
from indexmem.benchmarks.rows import BenchmarkRow, PublishedRows
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

AnswerScore = Callable[[str, Sequence[str]], float]  # (answer, right answers) -> [0, 1]
RowFields = Callable[[BenchmarkRow], Mapping[str, Any]]
# What becomes of a row longer than `grid.length`. Cut: the middle of the prompt, or of the context, goes.
TooLong = Literal["cut prompt", "cut context", "leave out", "refuse"]
MOST_CHARACTERS = 16  # a token, in the mean over any text: what is longer need not be tokenised to be left out


@dataclass(frozen=True)
class RowQuestion:
    """A question about a row's context."""

    text: str
    references: tuple[str, ...]
    labels: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PublishedBenchmark(Benchmark):
    """Rows in their order; each question of a row is a sample, and all of them have one context."""

    rows: PublishedRows
    where: tuple[str, Any] | None = None  # only rows with this value in this field
    protocol: str = "official"
    chat: bool = True
    too_long: TooLong = "cut prompt"
    published: int | None = None  # samples
    alone: bool = False  # samples of one context are no more alike than others

    @property
    def size(self) -> int | None:
        """At most so many samples."""
        return self.published

    @abstractmethod
    def context_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> str:
        """What is compressed."""

    @abstractmethod
    def questions_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> Sequence[RowQuestion]:
        """What is asked after that, one question at least."""

    @cached_property
    def chosen(self) -> list[BenchmarkRow]:
        """The rows that are asked about. Raises UserError when there are none."""
        if self.where is None:
            return self.rows.rows
        name, value = self.where
        found = [row for row in self.rows.rows if row[name] == value]
        if not found:
            values = ", ".join(sorted({str(row[name]) for row in self.rows.rows}))
            raise UserError(f"'{self.rows.path}' has no row with {name}={value}. Values of '{name}': {values}.")
        return found

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the rows end before. Raises UserError when none, or one that is refused, fits."""
        yield from islice(self._all(build), count)

    def _all(self, build: BuildContext) -> Iterator[Sample]:
        prompt = PromptFormat.of(build.tokenizer, chat=self.chat)
        fitted = chain.from_iterable(self._fitted(i, row, prompt, build) for i, row in enumerate(self.chosen))
        number = -1
        for number, (parts, asked) in enumerate(fitted):
            yield self._sample(number, parts, asked, build)
        if number < 0:
            raise UserError(f"Benchmark '{self.name}': no row fits into {build.length} tokens. Set grid.length higher.")

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The rows."""
        return {"rows": content_hash(self.chosen)}

    def _fitted(
        self, index: int, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext
    ) -> Iterable[tuple[Parts, RowQuestion]]:
        context = self.context_of(row, prompt, build)
        if self.too_long == "leave out" and len(context) > MOST_CHARACTERS * build.length:
            return ()
        questions = self.questions_of(row, prompt, build)
        whole = [Parts(context, one.text, "") for one in questions]
        room = build.length - self.generation_limit(build)
        if self.too_long == "cut prompt":
            whole = [without_middle(parts, build.tokenizer, prompt, room) for parts in whole]
        elif self.too_long == "cut context":
            asked = max(len(encode(build.tokenizer, prompt.question(one.text, ""))) for one in questions)
            room += len(encode(build.tokenizer, prompt.question("", ""))) - asked  # the suffix is counted twice
            cut = without_middle(Parts(context, "", ""), build.tokenizer, prompt, room).context
            whole = [Parts(cut, one.text, "") for one in questions]
        else:
            needed = max(parts.tokens(build.tokenizer, prompt) for parts in whole) + self.generation_limit(build)
            if needed > build.length and self.too_long == "refuse":
                raise UserError(
                    f"Benchmark '{self.name}', row {index + 1}: prompt and answer take {needed} tokens, and "
                    f"grid.length is {build.length}. Set grid.length={needed} or more."
                )
            if needed > build.length:
                return ()
        if not whole[0].context:
            raise UserError(
                f"Benchmark '{self.name}' does not fit into {build.length} tokens: its question and answer leave no "
                "room for a context. Set grid.length higher."
            )
        return zip(whole, questions)

    def _sample(self, number: int, parts: Parts, asked: RowQuestion, build: BuildContext) -> Sample:
        return Sample(
            id=f"{self.name}/{number}",
            benchmark=self.name,
            context=parts.context,
            question=parts.question,
            answer_prefix="",
            references=asked.references,
            max_new_tokens=self.generation_limit(build),
            chat=self.chat,
            options=asked.options,
            group=f"{self.name}/{number}" if self.alone else "",
            labels=asked.labels,
            extra=asked.extra,
        )


@dataclass(frozen=True)
class PublishedSet:
    """What is published of a set. `prompt` is word for word, with fields of the row in braces; it is cut behind the
    field `document`: what stands before is compressed."""

    prompt: str
    max_new_tokens: int
    score: AnswerScore
    fields: RowFields = dict  # the prompt's fields, of a row
    right: str = "answer"  # field of a right answer, or of a list of them
    document: str = "context"
    items: int | None = None
    others: Mapping[str, AnswerScore] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # label -> field of the row


@dataclass(frozen=True, kw_only=True)
class PromptBenchmark(PublishedBenchmark):
    """One question a row, asked with the set's prompt."""

    spec: PublishedSet

    @property
    def prompt(self) -> str:
        """The published prompt."""
        return self.spec.prompt

    def context_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> str:
        """The prompt up to the end of its document."""
        return self._parts(row)[0]

    def questions_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> Sequence[RowQuestion]:
        """The rest of it."""
        _, question, right = self._parts(row)
        return (RowQuestion(question, right, {label: row[name] for label, name in self.spec.labels.items()}),)

    def fields_of(self, row: BenchmarkRow) -> Mapping[str, Any]:
        """What the prompt is filled with."""
        return self.spec.fields(row)

    def score(self, prediction: str, sample: Sample) -> float:
        """The set's own."""
        return self.spec.score(prediction, sample.references)

    def other_scores(self, prediction: str, sample: Sample) -> Mapping[str, float]:
        """What the set reports beside it."""
        return {name: score(prediction, sample.references) for name, score in self.spec.others.items()}

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The prompts, rows' texts included, and the right answers."""
        return {"prompts": content_hash([self._parts(row) for row in self.chosen])}

    def _parts(self, row: BenchmarkRow) -> tuple[str, str, tuple[str, ...]]:
        """Context, question and right answers. Raises UserError for a row that lacks something."""
        before, _, after = self.prompt.partition(f"{{{self.spec.document}}}")
        try:
            fields = self.fields_of(row)
            context = before.format(**fields) + str(fields[self.spec.document])
            return context, after.format(**fields), texts_of(fields[self.spec.right])
        except UserError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"Benchmark '{self.name}': a row of {self.rows.path} is not as published ({type(error).__name__}: "
                f"{error}). It begins {row!r:.200}."
            ) from None


def texts_of(answer: Any) -> tuple[str, ...]:
    """A right answer, or a list of them, as texts."""
    return tuple(map(str, answer)) if isinstance(answer, list | tuple) else (str(answer),)


def check_sets(suite: str, names: Sequence[str], sets: Collection[str], left_out: Mapping[str, str]) -> None:
    """Raises UserError for a set that there is not, with the nearest one, or that is left out, with the reason."""
    for name in names:
        if name in left_out:
            raise UserError(f"{suite}'s set '{name}' is not here: it is {left_out[name]}. Sets: {', '.join(sets)}.")
        if name not in sets:
            near = difflib.get_close_matches(name, sets, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UserError(f"{suite} has no set '{name}'.{hint} Sets: {', '.join(sets)}.")
