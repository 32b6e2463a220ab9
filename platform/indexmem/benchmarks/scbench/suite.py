"""SCBench's sets as benchmarks, in both of its modes.

requests: each question is asked of the context alone ("same context, different query" of its code).
turns: each question follows the ones before it with their right answers, so that mistakes do not add up (its default).

Contexts of one row are the same text in both modes, cut in the middle where the longest question leaves no room for
all of it, so they are prefilled and compressed once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from indexmem.benchmarks.base import BuildContext, Sample
from indexmem.benchmarks.published.suite import PublishedBenchmark, RowQuestion, TooLong, check_sets, texts_of
from indexmem.benchmarks.rows import BenchmarkRow, PublishedRows
from indexmem.benchmarks.scbench.sets import LEFT_OUT, SHARED_SETS, SCBenchSet
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, between_turns

HUB = "microsoft/SCBench"
FIELDS = {"multi_turns": list}  # and `context`, which one set calls `input`

Asking = Literal["requests", "turns"]


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
class SCBench(PublishedBenchmark):
    """One set. Samples keep the order of questions, and `labels` say which turn of its row each is."""

    set: str
    mode: Asking
    turns: int  # of a row, at most
    too_long: TooLong = "cut context"

    @property
    def spec(self) -> SCBenchSet:
        """What is published of the set."""
        return SHARED_SETS[self.set]

    def context_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> str:
        """The row's, behind what the set puts before it."""
        first = row["multi_turns"][0]["input"]
        return self.spec.context.format(context=row.get("context") or row["input"], first=first)

    def questions_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> Sequence[RowQuestion]:
        """What follows the context in each turn; with earlier turns and their right answers in the mode `turns`."""
        between = between_turns(build.tokenizer) if self.mode == "turns" else ""
        history = "\n\n" if self.mode == "turns" else ""
        questions = []
        for number, turn in enumerate(row["multi_turns"][: self.turns], start=1):
            right = texts_of(turn["answer"])
            questions.append(RowQuestion(history + self._asked(turn), right, {"turn": number}))
            if self.mode == "turns":
                history = questions[-1].text + prompt.suffix + ", ".join(right) + between
        return questions

    def score(self, prediction: str, sample: Sample) -> float:
        """The set's own."""
        return self.spec.score(prediction, sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The rows, and how they are asked."""
        return {**super().ingredients(build), "mode": self.mode, "turns": self.turns}

    def _asked(self, turn: Mapping[str, Any]) -> str:
        named = re.search(r"The .+ is", turn["input"])
        target = named[0].lower().removesuffix(" is") if named else ""
        return self.spec.question.format(
            input=turn["input"], target=target, **dict(zip("ABCD", turn.get("options") or ()))
        )


def scbench(
    *, path: str = HUB, sets: tuple[str, ...] = tuple(SHARED_SETS), mode: Asking = "requests", turns: int = 100
) -> Sequence[PublishedBenchmark]:
    """The sets named; `turns`: questions about a context, at most."""
    check_sets("SCBench", sets, SHARED_SETS, LEFT_OUT)
    return tuple(
        SCBench(
            name=f"scbench_{name}" if mode == "requests" else f"scbench_turns_{name}",
            set=name,
            rows=PublishedRows(path, FIELDS, f"scbench_{name}", HUB, subset=f"scbench_{name}", check=check_row),
            mode=mode,
            turns=turns,
            max_new_tokens=SHARED_SETS[name].max_new_tokens,
        )
        for name in sets
    )
