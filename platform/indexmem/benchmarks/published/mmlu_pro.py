"""MMLU-Pro (Wang et al. 2024, arXiv 2406.01574; hub data set TIGER-Lab/MMLU-Pro, MIT), by likelihood of the letters.

The authors let a model reason, and read its answer. Here the letters A to J are scored as lm-evaluation-harness scores
those of MMLU, whose wording this is: so it is a protocol of its own. What is compressed are a category's five worked
examples, which all of its questions share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from indexmem.benchmarks.base import BuildContext, Sample
from indexmem.benchmarks.own.choice import option_lines
from indexmem.benchmarks.published.suite import PublishedBenchmark, RowQuestion, TooLong
from indexmem.benchmarks.rows import BenchmarkRow, PublishedRows
from indexmem.config.spec import content_hash
from indexmem.models.prompt import PromptFormat

HUB = "TIGER-Lab/MMLU-Pro"
FIELDS = {"question": str, "options": list, "answer_index": int, "category": str}
CATEGORIES = (
    *("biology", "business", "chemistry", "computer science", "economics", "engineering", "health", "history", "law"),
    *("math", "other", "philosophy", "physics", "psychology"),
)


@dataclass(frozen=True, kw_only=True)
class MMLUPro(PublishedBenchmark):
    """The questions of one category."""

    category: str
    examples: PublishedRows
    shots: int
    max_new_tokens: int = 1
    protocol: str = "likelihood"
    chat: bool = False
    too_long: TooLong = "refuse"
    alone: bool = True

    def context_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> str:
        """The examples with their answers."""
        examples = [row for row in self.examples.rows if row["category"] == self.category][: self.shots]
        shown = "".join(f"{_asked(row)} {ascii_uppercase[row['answer_index']]}\n\n" for row in examples)
        return f"The following are multiple choice questions (with answers) about {self.category}.\n\n{shown}"

    def questions_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> Sequence[RowQuestion]:
        """The question with its options, of which a letter is to be chosen."""
        letters = tuple(f" {letter}" for letter, _ in zip(ascii_uppercase, row["options"]))
        return (RowQuestion(_asked(row), (letters[row["answer_index"]],), {"category": self.category}, {}, letters),)

    def score(self, prediction: str, sample: Sample) -> float:
        """1.0 for the right letter."""
        return float(prediction in sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The questions and the examples before them."""
        return {**super().ingredients(build), "examples": content_hash(self.examples.rows), "shots": self.shots}


def _asked(row: BenchmarkRow) -> str:
    return f"{row['question'].strip()}\n{option_lines(row['options'])}\nAnswer:"


def mmlu_pro(
    *, path: str = HUB, categories: tuple[str, ...] = CATEGORIES, shots: int = 5
) -> Sequence[PublishedBenchmark]:
    """A task for each category; `path`: a hub id, or a folder with its test and validation files."""
    questions = PublishedRows(path, FIELDS, "test*", HUB)
    examples = PublishedRows(path, FIELDS, "validation*", HUB, split="validation")
    return tuple(
        MMLUPro(
            name=f"mmlu_pro_{category.replace(' ', '_')}",
            rows=questions,
            where=("category", category),
            category=category,
            examples=examples,
            shots=shots,
        )
        for category in categories
    )
