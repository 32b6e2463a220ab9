"""SCBench's sets as benchmarks, in both of its modes.

requests: each question is asked of the context alone ("same context, different query" of its code).
turns: each question follows the ones before it with their right answers, so that mistakes do not add up (its default).

Contexts of one row are the same text in both modes, cut in the middle where the longest question leaves no room for
all of it, so they are prefilled and compressed once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.longbench.prompts import Parts, without_middle
from indexmem.benchmarks.rows import BenchmarkRow, rows_of_file, rows_of_hub
from indexmem.benchmarks.scbench.sets import LEFT_OUT, SHARED_SETS, SCBenchSet
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.models.prompt import PromptFormat, between_turns, encode

HUB = "microsoft/SCBench"
FIELDS = {"multi_turns": list}  # and `context`, which one set calls `input`
INSTEAD = "Give path=FOLDER with its files, such as scbench_kv.jsonl."

Asking = Literal["requests", "turns"]


@dataclass(frozen=True)
class SCBenchRows:
    """The rows of a set, read when they are first needed."""

    path: str  # a hub id or a folder
    set: str

    @cached_property
    def rows(self) -> list[BenchmarkRow]:
        """All rows in order. Raises UserError when there are none to be had, or one does not fit."""
        name, local = f"scbench_{self.set}", expanded(self.path)
        if not local.is_dir():
            return rows_of_hub(self.path, "test", FIELDS, INSTEAD, subset=name, check=check_row)
        found = [file for folder in (local, local / "data") for file in sorted(folder.glob(f"{name}.*"))]
        if not found:
            raise UserError(f"{local} has no {name}.jsonl. Expected the files of {HUB}.")
        return rows_of_file(found[0], FIELDS, check_row)


def check_row(row: BenchmarkRow, where: str) -> None:
    """Raises UserError for a row that nothing can be asked about."""
    if not str(row.get("context") or row.get("input") or "").strip():
        raise UserError(f"{where}: 'context' is missing or empty, and it is what gets compressed.")
    if not row["multi_turns"]:
        raise UserError(f"{where}: 'multi_turns' must list one question at least.")
    for number, turn in enumerate(row["multi_turns"], start=1):
        if not isinstance(turn, dict) or "input" not in turn or "answer" not in turn:
            raise UserError(f"{where}: turn {number} must have 'input' and 'answer', got {turn!r:.80}.")


@dataclass(frozen=True, kw_only=True)
class SCBench(Benchmark):
    """One set. Each question of a row is a sample; samples keep their order, and `labels` say which turn they are."""

    set: str
    items: SCBenchRows
    mode: Asking
    turns: int  # of a row, at most
    max_new_tokens: int
    protocol: str = "official"

    @property
    def spec(self) -> SCBenchSet:
        """What is published of the set."""
        return SHARED_SETS[self.set]

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the set ends before. Raises UserError when a question leaves no room."""
        prompt = PromptFormat.of(build.tokenizer)
        between = between_turns(build.tokenizer) if self.mode == "turns" else ""
        number = 0
        for row in self.items.rows:
            for sample in self._row(row, number, build, prompt, between):
                if number == count:
                    return
                yield sample
                number += 1

    def score(self, prediction: str, sample: Sample) -> float:
        """The set's own."""
        return self.spec.score(prediction, sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The rows, and how they are asked."""
        return {"rows": content_hash(self.items.rows), "mode": self.mode, "turns": self.turns}

    def _row(
        self, row: BenchmarkRow, number: int, build: BuildContext, prompt: PromptFormat, between: str
    ) -> Iterator[Sample]:
        limit, turns = self.generation_limit(build), row["multi_turns"][: self.turns]
        questions = list(self._questions(turns, prompt, between))
        reserved = limit + max(len(encode(build.tokenizer, prompt.question(text, ""))) for text in questions)
        text = self.spec.context.format(
            context=row.get("context") or row["input"], first=turns[0]["input"] if turns else ""
        )
        room = (
            build.length - reserved + len(encode(build.tokenizer, prompt.question("", "")))
        )  # the suffix is reserved, too
        context = without_middle(Parts(text, "", ""), build.tokenizer, prompt, room).context
        if not context:
            raise UserError(
                f"Benchmark '{self.name}' does not fit into {build.length} tokens: questions and answer take "
                f"{reserved}. Set grid.length higher, or params.turns lower."
            )
        for turn, (asked, question) in enumerate(zip(turns, questions)):
            yield Sample(
                id=f"{self.name}/{number + turn}",
                benchmark=self.name,
                context=context,
                question=question,
                answer_prefix="",
                references=_texts(asked["answer"]),
                max_new_tokens=limit,
                labels={"turn": turn + 1},
            )

    def _questions(self, turns: Sequence[Mapping[str, Any]], prompt: PromptFormat, between: str) -> Iterator[str]:
        """What follows the context in each turn; with earlier turns and their right answers in the mode `turns`."""
        history = "\n\n" if self.mode == "turns" else ""
        for turn in turns:
            question = history + self._asked(turn)
            yield question
            if self.mode == "turns":
                history = question + prompt.suffix + ", ".join(_texts(turn["answer"])) + between

    def _asked(self, turn: Mapping[str, Any]) -> str:
        named = re.search(r"The .+ is", turn["input"])
        target = named[0].lower().removesuffix(" is") if named else ""
        return self.spec.question.format(
            input=turn["input"], target=target, **dict(zip("ABCD", turn.get("options") or ()))
        )


def _texts(answer: Any) -> tuple[str, ...]:
    return tuple(map(str, answer)) if isinstance(answer, list) else (str(answer),)


def scbench(
    *, path: str = HUB, sets: tuple[str, ...] = tuple(SHARED_SETS), mode: Asking = "requests", turns: int = 100
) -> Sequence[Benchmark]:
    """The sets named; `turns`: questions about a context, at most."""
    for name in sets:
        if name in LEFT_OUT:
            raise UserError(
                f"SCBench's set '{name}' is not here: it is {LEFT_OUT[name]}. Sets: {', '.join(SHARED_SETS)}."
            )
        if name not in SHARED_SETS:
            raise UserError(f"SCBench has no set '{name}'. Sets: {', '.join(SHARED_SETS)}.")
    return tuple(
        SCBench(
            name=f"scbench_{name}" if mode == "requests" else f"scbench_turns_{name}",
            set=name,
            items=SCBenchRows(path, name),
            mode=mode,
            turns=turns,
            max_new_tokens=SHARED_SETS[name].max_new_tokens,
        )
        for name in sets
    )
