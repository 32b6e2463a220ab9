"""One worker's part of a grid, without Ray: units in, encoded rows out, whatever the device's memory allows."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexmem.errors import detached, device_lost, out_of_memory
from indexmem.evaluate.rows import ResultRow, failed_rows
from indexmem.evaluate.work import Assignment, GridCell, Task, Unit
from indexmem.progress.status import FailureNote
from indexmem.results.parts import encoded, validated
from indexmem.results.schema import OK, RETENTION_SCHEMA, ROW_SCHEMA

KEPT_FAILURES = 5  # of one unit, and of a whole run


class Evaluates(Protocol):
    """What a worker drives; `CellEvaluator` is one."""

    def evaluate(self, tasks: Sequence[Task]) -> tuple[list[ResultRow], list[ResultRow]]: ...


Load = Callable[[Assignment], Evaluates]


def load_evaluator(assignment: Assignment) -> Evaluates:
    """The model and the methods, loaded."""
    import torch

    from indexmem.evaluate.cell import CellEvaluator

    torch.set_num_threads(assignment.experiment.grid.cpus_per_actor)
    return CellEvaluator.load(assignment.experiment, assignment.methods, assignment.checkpoint, assignment.provenance)


@dataclass(frozen=True)
class Digest:
    """What a worker says about a unit's rows, so that the driver need not read them: sums, however many there are.

    Shape: C cells of the unit's benchmark, in the plan's order.
    """

    benchmark: str
    score_C: NDArray[np.float64]  # sum of the finished rows' scores
    finished_C: NDArray[np.int64]
    failed_C: NDArray[np.int64]
    prefilled_tokens: int = 0  # each context counts once
    decoded_tokens: int = 0
    batch_rows: int = 0  # the largest decode batch
    cache_bytes: int = 0  # what that batch held, at the rows' mean size
    failures: tuple[FailureNote, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[ResultRow], benchmark: str, cells: Sequence[GridCell]) -> Digest:
        """Of rows of one benchmark; `cells` are all of its cells."""
        index = {cell.id: number for number, cell in enumerate(cells)}
        finished = [row for row in rows if row["status"] == OK]
        failed = [row for row in rows if row["status"] != OK]
        at_finished = np.array([index[row["cell_id"]] for row in finished], np.int64)
        at_failed = np.array([index[row["cell_id"]] for row in failed], np.int64)
        scores = np.array([row["score"] for row in finished], np.float64)
        read = [row["sample_id" if row["question_aware"] else "group"] for row in finished]
        contexts = {(of, row["context_tokens"] or 0) for of, row in zip(read, finished)}
        batch_rows = max((row["decode_batch"] or 0 for row in finished), default=0)
        held = sum(_cache_bytes(row) for row in finished)
        return cls(
            benchmark,
            np.bincount(at_finished, scores, len(cells)).astype(np.float64),
            np.bincount(at_finished, minlength=len(cells)),
            np.bincount(at_failed, minlength=len(cells)),
            sum(tokens for _, tokens in contexts),
            sum(row["new_tokens"] or 0 for row in finished),
            batch_rows,
            held * batch_rows // max(len(finished), 1),
            tuple(map(_failure, _telling(failed))),
        )

    @property
    def done(self) -> int:
        """Rows, failed ones included."""
        return int(self.finished_C.sum()) + self.failed

    @property
    def failed(self) -> int:
        return int(self.failed_C.sum())

    @property
    def tokens(self) -> int:
        """What the model read and wrote."""
        return self.prefilled_tokens + self.decoded_tokens


@dataclass(frozen=True)
class UnitOutcome:
    """A finished unit: parquet parts that the driver stores as they are."""

    rows: bytes
    retention: bytes | None
    digest: Digest
    seconds: float


class Worker:
    """Evaluates units. Memory that runs out halves what is evaluated at once, down to a single row."""

    def __init__(self, assignment: Assignment, evaluator: Evaluates) -> None:
        self.assignment, self.evaluator = assignment, evaluator
        self.rows_at_once: int | None = None  # learned when memory runs out

    def run(self, unit: Unit) -> UnitOutcome:
        """All rows of the unit, in failed rows those that no way led to.

        Raises torch.AcceleratorError, after which nothing works on the device: another process must go on.
        """
        started = time.perf_counter()
        rows: list[ResultRow] = []
        retention: list[ResultRow] = []
        for done, examples in self._pieces(self.assignment.tasks(unit)):
            rows += done
            retention += examples
        assert len(rows) == unit.rows, f"the evaluator gave {len(rows)} rows of {unit.rows}"
        return UnitOutcome(
            encoded(rows, ROW_SCHEMA),
            encoded(retention, RETENTION_SCHEMA) if retention else None,
            Digest.of(rows, unit.benchmark, self.assignment.cells[unit.benchmark]),
            time.perf_counter() - started,
        )

    def _pieces(self, tasks: list[Task]) -> Iterator[tuple[list[ResultRow], list[ResultRow]]]:
        """Yields rows and retention rows of the tasks, evaluated together as far as memory allows."""
        queue = deque([tasks])
        before = self.rows_at_once
        while queue:
            piece = queue.popleft()
            count = sum(len(task.cells) for task in piece)
            if self.rows_at_once is not None and count > self.rows_at_once:
                queue.extendleft(reversed(_halves(piece)))
                continue
            failure = self._try(piece)
            if not isinstance(failure, BaseException):
                yield failure
            elif out_of_memory(failure) and count > 1:
                self.rows_at_once = max(1, count // 2)
                queue.appendleft(piece)
            elif len(piece) > 1:  # one of the samples is at fault
                queue.extendleft([task] for task in reversed(piece))
            elif count > 1:  # one of the sample's cells is: the others go on
                queue.extendleft(reversed(_halves(piece)))
            else:
                yield failed_rows(self.assignment, piece, failure), []
                self.rows_at_once = before  # this row was too large, not the batch

    def _try(self, piece: Sequence[Task]) -> tuple[list[ResultRow], list[ResultRow]] | Exception:
        try:
            rows, retention = self.evaluator.evaluate(piece)
            for found, schema in ((rows, ROW_SCHEMA), (retention, RETENTION_SCHEMA)):
                validated(found, schema)  # raises: what cannot be stored is a failure, too
            return rows, retention
        except Exception as error:
            if device_lost(error):
                raise
            error.__cause__ = error.__context__ = None  # they have tracebacks, too
            failure = detached(error)
        if out_of_memory(failure):
            _free_memory()
        return failure


def _halves(piece: Sequence[Task]) -> list[list[Task]]:
    """The samples in halves; the cells of a single sample in halves."""
    if len(piece) > 1:
        return [list(piece[: len(piece) // 2]), list(piece[len(piece) // 2 :])]
    (task,) = piece
    half = len(task.cells) // 2
    return [[replace(task, cells=task.cells[:half])], [replace(task, cells=task.cells[half:])]]


def _free_memory() -> None:
    import torch  # only here, so that a worker without a model starts at once

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _cache_bytes(row: ResultRow) -> int:
    return sum(row[name] or 0 for name in ("kv_bytes", "indexer_bytes", "memory_bytes"))


def _telling(failed: Sequence[ResultRow]) -> list[ResultRow]:
    """The last rows that failed and, before them, the first of each method and class of error that these lack."""
    last = failed[-KEPT_FAILURES:]
    known = {(row["method"], row["error_class"]) for row in last}
    firsts = {(row["method"], row["error_class"]): row for row in reversed(failed[:-KEPT_FAILURES])}
    return [*(row for kind, row in firsts.items() if kind not in known), *last]


def _failure(row: ResultRow) -> FailureNote:
    return FailureNote.of(
        f"{row['method']} {row['budget']} {row['sample_id']}", f"{row['error_class']}: {row['error_message']}"
    )
