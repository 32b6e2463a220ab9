"""LongBench v2 (Bai et al. 2024, arXiv 2412.15204; github.com/THUDM/LongBench at commit 2e00731, MIT).

Prompt, limit and the way a letter is read from an answer are those of `pred.py` without its chain of thought.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from indexmem.benchmarks.published.suite import PromptBenchmark, PublishedSet
from indexmem.benchmarks.rows import BenchmarkRow, PublishedRows

HUB = "THUDM/LongBench-v2"
TEXTS = ("context", "question", "choice_A", "choice_B", "choice_C", "choice_D")
FIELDS = dict.fromkeys((*TEXTS, "answer", "difficulty", "length", "domain"), str)
TASKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"difficulty": ("easy", "hard"), "length": ("short", "medium", "long")}
)

_NAMED = (r"The correct answer is \(([A-D])\)", r"The correct answer is ([A-D])")


def correct_answer_is(answer: str, right: Sequence[str]) -> float:
    """1.0 when "The correct answer is (B)", or the same without brackets, names the right letter; asterisks aside."""
    found = (re.search(pattern, answer.replace("*", "")) for pattern in _NAMED)
    return float(next((match[1] for match in found if match), None) == right[0])


def stripped(row: BenchmarkRow) -> Mapping[str, Any]:
    """Its texts without the white space around them, as they go into the prompt."""
    return {**row, **{name: row[name].strip() for name in TEXTS}}


QUESTIONS = PublishedSet(
    "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n\n"
    "What is the correct answer to this question: {question}\n"
    "Choices:\n(A) {choice_A}\n(B) {choice_B}\n(C) {choice_C}\n(D) {choice_D}\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".',
    128,
    correct_answer_is,
    stripped,
    labels={"difficulty": "difficulty", "bucket": "length", "category": "domain"},
)


def longbench_v2(*, path: str = HUB, by: Literal["difficulty", "length"] | None = None) -> Sequence[PromptBenchmark]:
    """All 503 questions as one benchmark, or with `by` a task for each difficulty or length; `path`: a hub id, or
    data.json or its folder."""
    rows = PublishedRows(path, FIELDS, "data", HUB, split="train")
    values: tuple[str | None, ...] = (None,) if by is None else TASKS[by]
    return tuple(
        PromptBenchmark(
            name="longbench_v2" if value is None else f"longbench_v2_{value}",
            rows=rows,
            where=None if value is None else (by or "", value),
            spec=QUESTIONS,
            max_new_tokens=QUESTIONS.max_new_tokens,
            published=503 if value is None else None,
        )
        for value in values
    )
