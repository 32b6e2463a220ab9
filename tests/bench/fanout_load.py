"""The evaluator of tests/bench/fanout.py: rows as large as real ones, at a given pace. Imports no torch."""

from __future__ import annotations

import os
import random
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexmem.evaluate.rows import ResultRow, base_row
from indexmem.evaluate.work import Assignment, GridCell, Task
from indexmem.results.schema import OK

ANSWER = "".join(random.Random(0).choices(string.ascii_lowercase + " ", k=2**20))
MEASURED = ("kept_mean", "measured_ratio", "prefill_seconds", "score_seconds", "decode_seconds", "score")
COUNTED = ("context_tokens", "question_tokens", "new_tokens", "kept_min", "kept_max", "kv_bytes", "indexer_bytes")


def row_of(assignment: Assignment, task: Task, cell: GridCell, rng: random.Random) -> ResultRow:
    """A finished row: 120 letters of answer, and numbers that do not repeat."""
    start = rng.randrange(len(ANSWER) - 120)
    measured = {name: rng.random() for name in MEASURED} | {name: rng.randrange(10_000) for name in COUNTED}
    known = base_row(assignment.experiment, task.sample, cell, assignment.model_fingerprint, assignment.provenance)
    return known | measured | {"status": OK, "prediction": ANSWER[start : start + 120], "device": "cpu"}


@dataclass(frozen=True)
class Paced:
    """Sleeps for a share of `seconds` that goes with the rows asked for."""

    assignment: Assignment
    seconds: float  # for a sample in all its cells

    def evaluate(self, tasks: Sequence[Task]) -> tuple[list[ResultRow], list[ResultRow]]:
        rng = random.Random(tasks[0].sample.id)
        for task in tasks:
            time.sleep(self.seconds * len(task.cells) / len(self.assignment.cells[task.sample.benchmark]))
        return [row_of(self.assignment, task, cell, rng) for task in tasks for cell in task.cells], []


@dataclass(frozen=True)
class PacedLoad:
    """The first `slow` actors to load take three times as long for everything."""

    seconds: float
    slow: int
    folder: str  # empty at the start; actors count themselves here

    def __call__(self, assignment: Assignment) -> Paced:
        number = 0
        while True:
            try:
                os.close(os.open(Path(self.folder) / str(number), os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                number += 1
        return Paced(assignment, self.seconds * (3 if number < self.slow else 1))
