"""RULER samples that others have made: the layout of `simonjegou/ruler`, from the hub or from a local folder.

A row is one sample, already cut, with the columns context, question, answer_prefix, answer (list), task and
max_new_tokens. Lengths were measured with the tokenizer of Llama-3.1 and differ for other models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.rows import BenchmarkRow, rows_of_file, rows_of_hub
from indexmem.benchmarks.scorers import string_match_all, string_match_part
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.files import expanded

FIELDS = {"context": str, "question": str, "answer_prefix": str, "answer": list, "task": str, "max_new_tokens": int}
SPLIT = "test"
INSTEAD = "Give path=FOLDER of a local copy, or use the generated tasks (benchmark 'ruler')."


@dataclass(frozen=True)
class RulerRows:
    """All rows in this layout, read when they are first needed."""

    path: str
    length: int

    @cached_property
    def by_task(self) -> Mapping[str, Sequence[BenchmarkRow]]:
        """The rows of each task. Raises UserError when there are none to be had, or columns are missing."""
        local = expanded(self.path)
        if local.exists():
            rows = [row for file in _files(local, self.length) for row in rows_of_file(file, FIELDS)]
        else:
            rows = rows_of_hub(self.path, SPLIT, FIELDS, INSTEAD, subset=str(self.length))
        found: dict[str, list[BenchmarkRow]] = {}
        for row in rows:
            found.setdefault(row["task"], []).append({field: row[field] for field in FIELDS})
        return found


@dataclass(frozen=True, kw_only=True)
class RulerDatasetTask(Benchmark):
    """The rows of one task, in their order, scored as kvpress does."""

    task: str
    rows: RulerRows
    max_new_tokens: int
    protocol: str = "kvpress"

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the data set ends before."""
        for index, row in enumerate(self._rows[:count]):
            yield Sample(
                id=f"{self.name}/{index}",
                benchmark=self.name,
                context=row["context"],
                question=row["question"],
                answer_prefix=row["answer_prefix"],
                references=tuple(row["answer"]),
                max_new_tokens=build.max_new_tokens or row["max_new_tokens"],
            )

    def score(self, prediction: str, sample: Sample) -> float:
        """RULER's score of the task, control characters deleted."""
        match = string_match_part if self.task.startswith("qa") else string_match_all
        return match(prediction, sample.references, control="")

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The rows themselves."""
        return {"rows": content_hash(self._rows)}

    @property
    def _rows(self) -> Sequence[BenchmarkRow]:
        tasks = self.rows.by_task
        if self.task not in tasks:
            raise UserError(
                f"'{self.rows.path}' has no rows of task '{self.task}'. Its tasks: {', '.join(sorted(tasks))}."
            )
        return tasks[self.task]


def _files(path: Path, length: int) -> list[Path]:
    """A .parquet or .jsonl file, or the files of a folder; of a folder `<length>` inside it, if there is one."""
    folder = path / str(length) if (path / str(length)).is_dir() else path
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.parquet")) or sorted(folder.rglob("*.jsonl"))
    if not files:
        raise UserError(f"'{folder}' holds no .parquet or .jsonl file. Expected a copy of simonjegou/ruler.")
    return files
