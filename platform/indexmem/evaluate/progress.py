"""How far a grid is, and its mean scores so far.

Shapes: S samples and C cells of one benchmark, M methods, B budgets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexmem.evaluate.work import GridCell
from indexmem.evaluate.worker import KEPT_FAILURES, Digest
from indexmem.progress.status import FailureNote, MethodScores, RunStatus, ScoresSoFar, left_at

WINDOW_SECONDS = 120.0  # the rate is that of the last two minutes
WINDOW_EVENTS = 8  # or of the last eight units, where units take longer
STEADY_EVENTS = 5  # units, before which nothing is said of the time left
MAX_METHODS, MAX_BUDGETS = 40, 16  # of the table: a longer one is not readable


class _Event(NamedTuple):
    time: float
    rows: int  # stored by then
    tokens: int  # read and written by then


@dataclass
class Progress:
    """Rows are (sample, cell) pairs; `done` counts failed ones too."""

    total: int
    done: int = 0
    failed: int = 0  # of the rows that this run computed
    actors: int = 0  # at work or ready for it
    note: str = ""  # what the run waits for, if anything
    stopped_by: int | None = None  # signal that ended the run early
    scores: PartialScores | None = None
    failures: deque[FailureNote] = field(default_factory=lambda: deque(maxlen=KEPT_FAILURES))  # newest first
    _kinds: dict[str, FailureNote] = field(default_factory=dict, repr=False)
    _tokens: int = 0
    _begun: int = -1  # rows when it began
    _latest: Digest | None = None
    _events: deque[_Event] = field(default_factory=deque, repr=False)

    def start(self) -> None:
        """Begin to measure: from now on rows are computed."""
        self._begun = self.done
        self._events = deque([_Event(time.monotonic(), self.done, self._tokens)])

    def add(self, digest: Digest) -> None:
        """Count stored rows."""
        if not self._events:
            self.start()
        self.done += digest.done
        self.failed += digest.failed
        self._tokens += digest.tokens
        self._latest = digest
        self.failures.extendleft(digest.failures)
        for failure in digest.failures:
            self._kinds.setdefault(failure.kind, failure)
        if self.scores is not None:
            self.scores.add(digest)
        now = time.monotonic()
        self._events.append(_Event(now, self.done, self._tokens))
        while len(self._events) > WINDOW_EVENTS and self._events[1].time < now - WINDOW_SECONDS:
            self._events.popleft()

    @property
    def rate(self) -> float | None:
        """Rows per second lately; None before the first."""
        return self._per_second(lambda event: event.rows)

    @property
    def left_seconds(self) -> tuple[float, float] | None:
        """Time left at the rates of the recent past's halves; None before STEADY_EVENTS units. What ran before the
        first unit was through, such as loading the model, does not come again and is left out.
        """
        units = [event for event in self._events if event.rows != self._begun]
        if len(units) < STEADY_EVENTS:
            return None
        first, middle, last = units[0], units[len(units) // 2], units[-1]
        spans = ((first, middle), (middle, last))
        rates = [(b.rows - a.rows) / (b.time - a.time) for a, b in spans if b.time > a.time]
        return left_at(self.total - self.done, rates)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that the models read and wrote per second lately; None before the first."""
        return self._per_second(lambda event: event.tokens)

    def status(self) -> RunStatus:
        """How far the grid is now."""
        latest, scores = self._latest, self.scores
        return RunStatus(
            unit="rows",
            total=self.total,
            done=self.done,
            failed=self.failed,
            rate=self.rate,
            left_seconds=self.left_seconds,
            actors=self.actors,
            tokens_per_second=self.tokens_per_second or None,
            batch_rows=latest.batch_rows or None if latest else None,
            cache_bytes=latest.cache_bytes or None if latest else None,
            note=self.note,
            failures=tuple(self.failures),
            kinds=tuple(self._kinds.values()),
            scores=scores.table() if scores else None,
        )

    def line(self) -> str:
        """`status().line()`, for logs."""
        return self.status().line()

    def _per_second(self, count: Callable[[_Event], int]) -> float | None:
        if len(self._events) < 2:
            return None
        first, last = self._events[0], self._events[-1]
        return (count(last) - count(first)) / max(time.monotonic() - first.time, 1e-9)


class PartialScores:
    """Mean scores while a grid still runs, kept as sums by cell so that nothing is read twice."""

    def __init__(self, cells_of: Mapping[str, Sequence[GridCell]], samples_of: Mapping[str, int]) -> None:
        """cells_of: benchmark -> its cells; samples_of: benchmark -> how many samples a finished cell has."""
        every = [cell for cells in cells_of.values() for cell in cells]
        self._methods = list(dict.fromkeys(cell.method.label for cell in every))
        self._budgets = [str(budget) for budget in sorted({cell.budget for cell in every})]
        self._entry_C = {name: self._entries(cells) for name, cells in cells_of.items()}
        self._samples_of = samples_of
        self._score_C = {name: np.zeros(len(cells)) for name, cells in cells_of.items()}
        self._finished_C = {name: np.zeros(len(cells), np.int64) for name, cells in cells_of.items()}
        self._failed_C = {name: np.zeros(len(cells), np.int64) for name, cells in cells_of.items()}

    def add(self, digest: Digest) -> None:
        """Count a unit's rows."""
        self._score_C[digest.benchmark] += digest.score_C
        self._finished_C[digest.benchmark] += digest.finished_C
        self._failed_C[digest.benchmark] += digest.failed_C

    def stored(self, benchmark: str, score_SC: NDArray[np.float32]) -> None:
        """What the store holds of a benchmark replaces what was counted of it; NaN where it lacks a row."""
        self._score_C[benchmark] = np.nansum(score_SC, axis=0, dtype=np.float64)
        self._finished_C[benchmark] = np.count_nonzero(~np.isnan(score_SC), axis=0)

    @property
    def cells(self) -> int:
        return sum(map(len, self._score_C.values()))

    @property
    def cells_done(self) -> int:
        """Cells with a finished row for every sample."""
        return sum(int((rows >= self._samples_of[name]).sum()) for name, rows in self._finished_C.items())

    @property
    def cells_failing(self) -> int:
        """Cells with a row that failed in this run."""
        return sum(int(np.count_nonzero(rows)) for rows in self._failed_C.values())

    def table(self) -> ScoresSoFar:
        """Means over benchmarks, the best method first."""
        size = len(self._methods) * len(self._budgets)
        sums, benchmarks = np.zeros(size), np.zeros(size)
        for name, entry_C in self._entry_C.items():
            score = np.bincount(entry_C, self._score_C[name], size)
            finished = np.bincount(entry_C, self._finished_C[name], size)
            seen = finished > 0
            sums[seen] += score[seen] / finished[seen]
            benchmarks += seen
        shape = (len(self._methods), len(self._budgets))
        with np.errstate(invalid="ignore"):
            mean_MB = (sums / benchmarks).reshape(shape)
        order = sorted(range(shape[0]), key=lambda number: -_mean(mean_MB[number]))[:MAX_METHODS]
        methods = tuple(
            MethodScores(
                self._methods[number],
                tuple(None if np.isnan(mean) else float(mean) for mean in mean_MB[number, :MAX_BUDGETS]),
            )
            for number in order
        )
        left_out = max(0, shape[0] - MAX_METHODS) + max(0, shape[1] - MAX_BUDGETS)
        return ScoresSoFar(tuple(self._budgets[:MAX_BUDGETS]), methods, left_out)

    def _entries(self, cells: Sequence[GridCell]) -> NDArray[np.int64]:
        """Each cell's entry in the flattened table of methods and budgets."""
        methods = {label: number for number, label in enumerate(self._methods)}
        budgets = {text: number for number, text in enumerate(self._budgets)}
        pairs = [methods[cell.method.label] * len(budgets) + budgets[str(cell.budget)] for cell in cells]
        return np.array(pairs, np.int64)


def _mean(mean_B: NDArray[np.float64]) -> float:
    known = mean_B[~np.isnan(mean_B)]
    return float(known.mean()) if len(known) else -1.0
