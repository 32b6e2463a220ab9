"""AIME 2025 and MATH500: the problem is the question, the answer is read from the last box.

Nothing but the opening of the chat template stands before the question, as in kvpress's data sets for decoding, unless
a row brings a `context`. What evicts here is `eviction.decode_budget`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import PositiveInt

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.maths.boxed import as_integer, last_boxed
from indexmem.benchmarks.maths.verifier import Verifier
from indexmem.benchmarks.rows import BenchmarkRow, PublishedRows, check_type
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.extras import need
from indexmem.models.prompt import PromptFormat, encode

AIME25, MATH500 = "alessiodevoto/aime25", "alessiodevoto/math500"  # hub data sets, as kvpress reads them
SPLIT = "test"
INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
KINDS = {"answer": (str, int)}


@dataclass(frozen=True, kw_only=True)
class MathsTask(Benchmark):
    """Problems in their order: rows with `problem` (or `question`) and `answer`, and perhaps `context`, `subject` and
    `level`."""

    rows: PublishedRows
    max_new_tokens: int
    protocol: str = "kvpress"
    published: int  # problems

    @property
    def size(self) -> int:
        """At most so many samples."""
        return self.published

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the problems end before. Raises UserError for one without room."""
        limit = self.generation_limit(build)
        prompt = PromptFormat.of(build.tokenizer)
        for index, row in enumerate(self.rows.rows[:count]):
            context, question = row.get("context") or "", _problem(row)
            if "boxed" not in context + question:
                question += INSTRUCTION
            before = len(encode(build.tokenizer, prompt.context(context)))
            if before == 0:
                raise UserError(
                    f"Benchmark '{self.name}': nothing stands before problem {index}, since the model has no chat "
                    "template and no token that starts a text. Give the rows a 'context', such as an instruction."
                )
            needed = before + len(encode(build.tokenizer, prompt.question(question, ""))) + limit
            if needed > build.length:
                raise UserError(
                    f"Benchmark '{self.name}': problem {index} and an answer of {limit} tokens take {needed}. Set "
                    f"grid.length={needed} or more, or lower grid.max_new_tokens."
                )
            yield Sample(
                id=f"{self.name}/{index}",
                benchmark=self.name,
                context=context,
                question=question,
                answer_prefix="",
                references=(str(row["answer"]).strip(),),
                max_new_tokens=limit,
                group=f"{self.name}/{index}",  # what stands before the problem is no text that they share
                labels={name: row[name] for name in ("subject", "level") if row.get(name) is not None},
            )

    def score(self, prediction: str, sample: Sample) -> float:
        """1.0 when the last box holds the right answer."""
        boxed = last_boxed(prediction)
        return float(boxed is not None and self.equal(sample.references[0], boxed))

    def other_scores(self, prediction: str, sample: Sample) -> Mapping[str, float]:
        """Whether there is a box, and whether it holds the reference letter for letter, white space aside."""
        boxed = last_boxed(prediction)
        exact = boxed is not None and "".join(boxed.split()) == "".join(sample.references[0].split())
        return {"boxed": float(boxed is not None), "exact": float(exact)}

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The problems and what is asked of an answer."""
        return {"problems": content_hash(self.rows.rows), "instruction": INSTRUCTION}

    @abstractmethod
    def equal(self, reference: str, boxed: str) -> bool:
        """Whether an answer is right."""


@dataclass(frozen=True, kw_only=True)
class Aime(MathsTask):
    """Answers are whole numbers from 0 to 999."""

    def equal(self, reference: str, boxed: str) -> bool:
        """As numbers: 016 is 16."""
        right = as_integer(reference)
        return right is not None and as_integer(boxed) == right


@dataclass(frozen=True, kw_only=True)
class Math500(MathsTask):
    """Answers are LaTeX."""

    verifier: Verifier = field(default_factory=Verifier, compare=False, repr=False)

    def equal(self, reference: str, boxed: str) -> bool:
        """By math-verify."""
        return self.verifier.equal(reference, boxed)


def _problem(row: BenchmarkRow) -> Any:
    return row.get("problem", row.get("question"))


def _has_problem(row: BenchmarkRow, where: str) -> None:
    check_type(_problem(row), str, f"{where}: 'problem' (or 'question')")


def _problems(path: str) -> PublishedRows:
    return PublishedRows(path, KINDS, split=SPLIT, check=_has_problem)


def aime25(*, path: str = AIME25, max_new_tokens: PositiveInt = 32_000) -> Sequence[Benchmark]:
    """AIME 2025, I and II; `path` is a local .jsonl or .parquet file or a hub id."""
    return (Aime(name="aime25", rows=_problems(path), max_new_tokens=max_new_tokens, published=30),)


def math500(*, path: str = MATH500, max_new_tokens: PositiveInt = 32_000) -> Sequence[Benchmark]:
    """MATH500; `path` is a local .jsonl or .parquet file or a hub id."""
    need("benchmarks", "math_verify")  # before anything is evaluated
    return (Math500(name="math500", rows=_problems(path), max_new_tokens=max_new_tokens, published=500),)
