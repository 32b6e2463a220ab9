"""One worker's part of a grid, without Ray: units in, encoded rows out, whatever the device's memory allows."""

from __future__ import annotations

import gc
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Protocol

import pyarrow as pa

from indexmem.benchmarks.base import Sample
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.evaluate.cells import RETENTION_SAMPLES, Cell, Task
from indexmem.evaluate.digest import Digest
from indexmem.evaluate.rows import Row, failed_row
from indexmem.evaluate.units import Unit
from indexmem.results.schema import RETENTION_SCHEMA, ROW_SCHEMA
from indexmem.results.table import encoded, validated


class Evaluates(Protocol):
    """What a worker drives; `CellEvaluator` is one."""

    def evaluate(self, tasks: Sequence[Task]) -> tuple[list[Row], list[Row]]: ...


@dataclass(frozen=True)
class Assignment:
    """What every worker must know, sent once; units then refer to it by index."""

    experiment: Experiment
    methods: Mapping[str, MethodConfig]  # label -> config
    cells: Mapping[str, tuple[Cell, ...]]  # benchmark -> cells
    samples: Mapping[str, pa.Array]  # benchmark -> pickled samples: read in place, not copied into every worker
    model_fingerprint: str
    checkpoint: str | None
    provenance: Mapping[str, Any]

    def tasks(self, unit: Unit) -> list[Task]:
        """The unit's samples with the cells to evaluate."""
        cells, samples = self.cells[unit.benchmark], self.samples[unit.benchmark]
        return [
            Task(pickle.loads(samples[index].as_buffer()), tuple(compress(cells, row_C)), index < RETENTION_SAMPLES)
            for index, row_C in zip(unit.samples, unit.missing_SC(len(cells)))
        ]

    def failed_rows(self, tasks: Sequence[Task], error: BaseException) -> list[Row]:
        """A row for each of the tasks' cells that says why it has no answer."""
        return [
            failed_row(self.experiment, task.sample, cell, self.model_fingerprint, error, self.provenance)
            for task in tasks
            for cell in task.cells
        ]


def packed_samples(samples: Sequence[Sample]) -> pa.Array:
    """Samples as one Arrow array, which Ray's object store shares between the processes of a node."""
    return pa.array([pickle.dumps(sample) for sample in samples], pa.large_binary())


Load = Callable[[Assignment], Evaluates]


def load_evaluator(assignment: Assignment) -> Evaluates:
    """The model and the methods, loaded."""
    import torch

    from indexmem.evaluate.cell import CellEvaluator

    torch.set_num_threads(assignment.experiment.grid.cpus_per_actor)
    return CellEvaluator.load(assignment.experiment, assignment.methods, assignment.checkpoint, assignment.provenance)


@dataclass(frozen=True)
class Outcome:
    """A finished unit: parquet parts that the driver stores as they are."""

    rows: bytes
    retention: bytes | None
    digest: Digest
    seconds: float

    @property
    def done(self) -> int:
        """Rows, failed ones included."""
        return self.digest.done

    @property
    def failed(self) -> int:
        return self.digest.failed


class Worker:
    """Evaluates units. Memory that runs out halves what is evaluated at once, down to a single row."""

    def __init__(self, assignment: Assignment, evaluator: Evaluates) -> None:
        self.assignment, self.evaluator = assignment, evaluator
        self.rows_at_once: int | None = None  # learned when memory runs out

    def run(self, unit: Unit) -> Outcome:
        """All rows of the unit, in failed rows those that no way led to.

        Raises what says that this process is of no more use: a device error after which nothing works.
        """
        started = time.perf_counter()
        rows: list[Row] = []
        retention: list[Row] = []
        for done, examples in self._pieces(self.assignment.tasks(unit)):
            rows += done
            retention += examples
        assert len(rows) == unit.rows, f"the evaluator gave {len(rows)} rows of {unit.rows}"
        return Outcome(
            encoded(rows, ROW_SCHEMA),
            encoded(retention, RETENTION_SCHEMA) if retention else None,
            Digest.of(rows, unit.benchmark, self.assignment.cells[unit.benchmark]),
            time.perf_counter() - started,
        )

    def _pieces(self, tasks: list[Task]) -> Iterator[tuple[list[Row], list[Row]]]:
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
            elif _out_of_memory(failure) and count > 1:
                self.rows_at_once = max(1, count // 2)
                queue.appendleft(piece)
            elif len(piece) > 1:  # one of the samples is at fault
                queue.extendleft([task] for task in reversed(piece))
            elif count > 1:  # one of the sample's cells is: the others go on
                queue.extendleft(reversed(_halves(piece)))
            else:
                yield self.assignment.failed_rows(piece, failure), []
                self.rows_at_once = before  # this row was too large, not the batch

    def _try(self, piece: Sequence[Task]) -> tuple[list[Row], list[Row]] | Exception:
        try:
            rows, retention = self.evaluator.evaluate(piece)
            for found, schema in ((rows, ROW_SCHEMA), (retention, RETENTION_SCHEMA)):
                validated(found, schema)  # raises: what cannot be stored is a failure, too
            return rows, retention
        except Exception as error:
            if _device_lost(error):
                raise
            # Frames of the traceback would keep tensors alive, just when memory is short.
            error.__cause__ = error.__context__ = None
            failure = error.with_traceback(None)
        if _out_of_memory(failure):
            _free_memory()
        return failure


def _halves(piece: Sequence[Task]) -> list[list[Task]]:
    """The samples in halves; the cells of a single sample in halves."""
    if len(piece) > 1:
        return [list(piece[: len(piece) // 2]), list(piece[len(piece) // 2 :])]
    (task,) = piece
    half = len(task.cells) // 2
    return [[replace(task, cells=task.cells[:half])], [replace(task, cells=task.cells[half:])]]


# torch is imported only where something went wrong, so that a worker without a model starts at once.


def _out_of_memory(error: BaseException) -> bool:
    from indexmem.engine.faults import out_of_memory

    return out_of_memory(error)


def _device_lost(error: BaseException) -> bool:
    from indexmem.engine.faults import device_lost

    return device_lost(error)


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
