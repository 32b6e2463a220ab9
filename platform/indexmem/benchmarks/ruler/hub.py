"""RULER samples that others have made: the layout of `simonjegou/ruler`, from the hub or from a local folder.

A row is one sample, already cut, with the columns context, question, answer_prefix, answer (list), task and
max_new_tokens. Lengths were measured with the tokenizer of Llama-3.1 and differ for other models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.rows import read_rows
from indexmem.benchmarks.scorers import string_match_all, string_match_part
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.files import expanded

KINDS = {"context": str, "question": str, "answer_prefix": str, "answer": list, "task": str, "max_new_tokens": int}
COLUMNS = tuple(KINDS)
SPLIT = "test"


@dataclass(frozen=True)
class RulerRows:
    """A table in this layout, read when it is first needed."""

    path: str
    length: int

    @cached_property
    def table(self) -> pa.Table:
        """All rows. Raises UserError when there are none to be had, or columns are missing."""
        local = expanded(self.path)
        table = _read_local(local, self.length) if local.exists() else _read_hub(self.path, self.length)
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing:
            raise UserError(
                f"'{self.path}' lacks the columns {', '.join(missing)}. Expected those of simonjegou/ruler: "
                f"{', '.join(COLUMNS)}."
            )
        return table.select(COLUMNS)


@dataclass(frozen=True, kw_only=True)
class RulerDatasetTask(Benchmark):
    """The rows of one task, in their order, scored as kvpress does."""

    task: str
    rows: RulerRows
    max_new_tokens: int
    protocol: str = "kvpress"

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the data set ends before."""
        for index, row in enumerate(self._own.slice(0, count).to_pylist()):
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
        return {"rows": content_hash(self._own.to_pylist())}

    @property
    def _own(self) -> pa.Table:
        found = self.rows.table.filter(pc.equal(self.rows.table["task"], self.task))
        if not found.num_rows:
            tasks = ", ".join(sorted(set(self.rows.table["task"].to_pylist())))
            raise UserError(f"'{self.rows.path}' has no rows of task '{self.task}'. Its tasks: {tasks}.")
        return found


def _read_local(path: Path, length: int) -> pa.Table:
    """A .parquet or .jsonl file, or the files of a folder; of a folder `<length>` inside it, if there is one."""
    folder = path / str(length) if (path / str(length)).is_dir() else path
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.parquet")) or sorted(folder.rglob("*.jsonl"))
    if not files:
        raise UserError(f"'{folder}' holds no .parquet or .jsonl file. Expected a copy of simonjegou/ruler.")
    try:
        return pa.concat_tables([_read_file(file) for file in files], promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"'{folder}' cannot be read: {error}") from None


def _read_file(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    return pa.Table.from_pylist(read_rows(path, KINDS))


def _read_hub(name: str, length: int) -> pa.Table:
    from datasets import load_dataset  # slow to import, and of no use for generated samples

    try:
        return load_dataset(name, str(length), split=SPLIT).with_format("arrow")[:]
    except (OSError, ValueError) as error:  # datasets' and the hub's own errors derive from these
        problem = str(error).splitlines()[0]
        raise UserError(
            f"Data set '{name}' ({length}) cannot be had: {problem} Give path=FOLDER of a local copy, or use the "
            "generated tasks (benchmark 'ruler')."
        ) from None
