"""How far a grid is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from indexmem.evaluate.digest import KEPT_FAILURES, Digest
from indexmem.evaluate.scores import PartialScores
from indexmem.progress.status import FailureNote, RunStatus

WINDOW_SECONDS = 120.0  # the rate is that of the last two minutes
WINDOW_EVENTS = 8  # or of the last eight units, where units take longer


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
    _tokens: int = 0
    _latest: Digest | None = None
    _events: deque[_Event] = field(default_factory=deque, repr=False)

    def start(self) -> None:
        """Begin to measure: from now on rows are computed."""
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
    def eta_seconds(self) -> float | None:
        """Time left at the recent rate; None while there is no rate."""
        rate = self.rate
        return (self.total - self.done) / rate if rate else None

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
            eta_seconds=self.eta_seconds,
            actors=self.actors,
            tokens_per_second=self.tokens_per_second or None,
            batch_rows=latest.batch_rows or None if latest else None,
            cache_bytes=latest.cache_bytes or None if latest else None,
            note=self.note,
            failures=tuple(self.failures),
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
