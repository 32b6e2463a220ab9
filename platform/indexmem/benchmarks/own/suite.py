"""The benchmark `jsonl`: each row of a file with its context, question, right answers and metric, or its options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample, Turn
from indexmem.benchmarks.own.choice import LETTERS, chosen, letters_of, option_lines
from indexmem.benchmarks.own.metrics import LIKELIHOOD, own_scorers, score, whole
from indexmem.benchmarks.own.rows import read_own_rows
from indexmem.benchmarks.rows import BenchmarkRow
from indexmem.config.reference import without_folders
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.models.prompt import PromptFormat, between_turns, encode
from indexmem.plugins.load import Found

Match = Literal["any", "all"]


@dataclass(frozen=True, kw_only=True)
class JsonlBenchmark(Benchmark):
    """The rows in their order. `metric` and `match` are those of rows that name none."""

    path: str
    max_new_tokens: int
    metric: str = "contains"
    match: Match = "any"
    protocol: str = "own"

    @cached_property
    def _rows(self) -> list[BenchmarkRow]:
        return read_own_rows(self.path)

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the rows end before. Raises UserError for one that `build` has no room for."""
        prompt = PromptFormat.of(build.tokenizer)
        for index, row in enumerate(self._rows[:count]):
            sample = self._sample(row, index, build.max_new_tokens, prompt)
            between = between_turns(build.tokenizer) if sample.turns else ""
            asked = [between + prompt.question(one.question, one.answer_prefix) for one in sample.asked]
            rendered = (prompt.context(sample.context), asked[0].removeprefix(between), *asked[1:])
            needed = sum(len(encode(build.tokenizer, text)) for text in rendered)
            needed += sum(one.max_new_tokens for one in sample.asked)
            if needed > build.length:
                raise UserError(
                    f"{self.path}, row {index + 1}: prompt and answer take {needed} tokens, and grid.length is "
                    f"{build.length}. Set grid.length={needed} or more, or shorten the context."
                )
            yield sample

    def score(self, prediction: str, sample: Sample) -> float:
        """By the option that is likeliest or chosen, or by the metric of the row."""
        if sample.options:
            return float(prediction in sample.references)
        if "options" in sample.extra:
            return float(chosen(prediction, sample.extra["options"]) in sample.extra["right"])
        named = sample.extra["metric"]  # of a file, without its folder: samples are cached for all places
        metric = self.metric if named == without_folders(self.metric) else named
        return score(metric, sample.extra.get("match", "any"), prediction, sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The rows, and what holds for those that do not say it themselves."""
        plain = [row for row in self._rows if row.get("options") is None]
        defaults: dict[str, Any] = {}
        if self.metric == LIKELIHOOD or any(row.get("metric") is None for row in plain):
            defaults["metric"] = self.metric
        if any(row.get("match") is None and whole(self._metric(row)) is None for row in plain) and self.match != "any":
            defaults["match"] = self.match
        if own := own_scorers(map(self._metric, plain)):
            defaults["scorers"] = {metric: found.code for metric, found in own.items()}
        return {"rows": content_hash(self._rows)} | without_folders(defaults)

    def named_by_rows(self) -> Iterable[Found]:
        """Scorers of rows that name their own, where the file is on this machine."""
        if not expanded(self.path).is_file():
            return ()
        return own_scorers(row["metric"] for row in self._rows if row.get("metric")).values()

    def _metric(self, row: BenchmarkRow) -> str:
        return str(row.get("metric") or self.metric)

    def _sample(self, row: BenchmarkRow, index: int, max_new_tokens: int | None, prompt: PromptFormat) -> Sample:
        options, references, question = row.get("options"), tuple(row["answers"]), row["question"]
        likely: tuple[str, ...] = ()  # options that are scored by their likelihood
        extra: dict[str, Any] = {}
        if options is None:
            match = row.get("match") or self.match
            extra = {"metric": self._metric(row)} | ({"match": match} if match != "any" else {})
            if extra["metric"] == LIKELIHOOD:
                raise UserError(f"{self.path}, row {index + 1}: metric {LIKELIHOOD} compares 'options'. Add them.")
        elif self._metric(row) == LIKELIHOOD:
            blank = "" if prompt.question(question, row.get("answer_prefix") or "")[-1:].isspace() else " "
            likely = tuple(blank + option for option in options)
            right = letters_of(row["answers"], options, f"row {index + 1}")
            references = tuple(likely[LETTERS.index(letter)] for letter in right)
        else:
            extra = {"options": options, "right": letters_of(row["answers"], options, f"row {index + 1}")}
            references = tuple(line for line in option_lines(options).split("\n") if line[0] in extra["right"])
            question = f"{question}\n{option_lines(options)}\n"
        limit = max_new_tokens or row.get("max_new_tokens") or self.max_new_tokens
        turns = tuple(
            Turn(
                turn["question"],
                turn.get("answer_prefix") or "",
                tuple(turn["answers"]),
                max_new_tokens or turn.get("max_new_tokens") or limit,
            )
            for turn in row.get("turns") or ()
        )
        return Sample(
            id=f"{self.name}/{index}",
            benchmark=self.name,
            context=row["context"],
            question=question,
            answer_prefix=row.get("answer_prefix") or "",
            references=references,
            max_new_tokens=limit,
            options=likely,
            turns=turns,
            group=f"{self.name}/{row['group']}" if row.get("group") else "",
            labels=row.get("labels") or {},
            extra=extra,
        )


def jsonl(
    *,
    path: str,
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "jsonl",
    max_new_tokens: PositiveInt = 64,
    metric: str = "contains",
    match: Match = "any",
) -> Sequence[Benchmark]:
    """The rows of the file `path`, under `name`, so that a spec can have several. `metric` and `match`: of rows that
    do not name theirs."""
    whole(metric)  # raises for one that does not exist
    return (JsonlBenchmark(name=name, path=path, max_new_tokens=max_new_tokens, metric=metric, match=match),)
