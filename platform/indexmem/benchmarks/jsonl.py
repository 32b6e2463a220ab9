"""Your own data as a benchmark: one JSON object a line, each with its context, question, answers and metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.longbench.metrics import code_similarity, qa_f1, qa_f1_zh, rouge_l, rouge_l_zh
from indexmem.benchmarks.maths.boxed import as_integer, last_boxed
from indexmem.benchmarks.rows import BenchmarkRow, check_type, rows_of_file
from indexmem.benchmarks.scorers import string_match_all, string_match_part
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.models.prompt import PromptFormat, encode

FIELDS = {"context": str, "question": str, "answer_prefix": str, "answers": list, "metric": str}
OPTIONAL = {"max_new_tokens": int, "labels": dict, "group": str}

Scorer = Callable[[str, Sequence[str]], float]


def best_of(metric: Callable[[str, str], float]) -> Scorer:
    """The best score over all answers."""
    return lambda prediction, answers: max(metric(prediction, answer) for answer in answers)


def exact(prediction: str, answer: str) -> float:
    """1.0 for the same text, case and outer white space aside."""
    return float(prediction.strip().lower() == answer.strip().lower())


def boxed_integer(prediction: str, answer: str) -> float:
    r"""1.0 when the last \boxed{...} is the same whole number."""
    right = as_integer(answer)
    return float(right is not None and as_integer(last_boxed(prediction)) == right)


METRICS: Mapping[str, Scorer] = MappingProxyType(
    {
        "contains_all": string_match_all,
        "contains_any": string_match_part,
        "exact": best_of(exact),
        "f1": best_of(qa_f1),
        "f1_zh": best_of(qa_f1_zh),
        "rouge_l": best_of(rouge_l),
        "rouge_l_zh": best_of(rouge_l_zh),
        "code_similarity": best_of(code_similarity),
        "boxed_integer": best_of(boxed_integer),
    }
)


@dataclass(frozen=True)
class OwnRows:
    """The rows of a file, read when they are first needed."""

    path: str

    @cached_property
    def rows(self) -> list[BenchmarkRow]:
        """All rows in order. Raises UserError that names the file, the line and what was expected."""
        file = expanded(self.path)
        if not file.is_file():
            raise UserError(f"Benchmark 'jsonl': there is no file {file}. Give params: {{path: FILE.jsonl}}.")
        return rows_of_file(file, FIELDS, _check)


@dataclass(frozen=True, kw_only=True)
class JsonlBenchmark(Benchmark):
    """The rows in their order, each scored by the metric that it names."""

    own: OwnRows
    max_new_tokens: int
    protocol: str = "own"

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the rows end before. Raises UserError for one that `build` has no room for."""
        prompt = PromptFormat.of(build.tokenizer)
        for index, row in enumerate(self.own.rows[:count]):
            limit = build.max_new_tokens or row.get("max_new_tokens") or self.max_new_tokens
            rendered = prompt.context(row["context"]), prompt.question(row["question"], row["answer_prefix"])
            needed = sum(len(encode(build.tokenizer, text)) for text in rendered) + limit
            if needed > build.length:
                raise UserError(
                    f"{self.own.path}, row {index + 1}: prompt and answer take {needed} tokens, and grid.length is "
                    f"{build.length}. Set grid.length={needed} or more, or shorten the context."
                )
            yield Sample(
                id=f"{self.name}/{index}",
                benchmark=self.name,
                context=row["context"],
                question=row["question"],
                answer_prefix=row["answer_prefix"],
                references=tuple(row["answers"]),
                max_new_tokens=limit,
                group=f"{self.name}/{row['group']}" if row.get("group") else "",
                labels=row.get("labels") or {},
                extra={"metric": row["metric"]},
            )

    def score(self, prediction: str, sample: Sample) -> float:
        """By the metric of the row."""
        return METRICS[sample.extra["metric"]](prediction, sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The rows."""
        return {"rows": content_hash(self.own.rows)}


def _check(row: BenchmarkRow, where: str) -> None:
    """Raises UserError for what the kinds of the required fields do not say."""
    if not row["context"].strip():
        raise UserError(f"{where}: 'context' is empty, and it is what gets compressed.")
    for field, kind in OPTIONAL.items():
        if row.get(field) is not None:
            check_type(row[field], kind, f"{where}: '{field}'")
    if not row["answers"]:
        raise UserError(f"{where}: 'answers' must list one text at least.")
    for answer in row["answers"]:
        check_type(answer, str, f"{where}: each of 'answers'")
    if row["metric"] not in METRICS:
        raise UserError(f"{where}: no metric is called '{row['metric']}'. Metrics: {', '.join(METRICS)}.")
    if row.get("max_new_tokens") is not None and row["max_new_tokens"] < 1:
        raise UserError(f"{where}: 'max_new_tokens' must be 1 or more, got {row['max_new_tokens']}.")
    unknown = sorted(row.keys() - FIELDS.keys() - OPTIONAL.keys())
    if unknown:
        raise UserError(f"{where}: unknown field '{unknown[0]}'. Fields: {', '.join([*FIELDS, *OPTIONAL])}.")


def jsonl(
    *,
    path: str,
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "jsonl",
    max_new_tokens: PositiveInt = 64,
) -> Sequence[Benchmark]:
    """The rows of the file `path`, under `name`, so that a spec can have several."""
    return (JsonlBenchmark(name=name, own=OwnRows(path), max_new_tokens=max_new_tokens),)
