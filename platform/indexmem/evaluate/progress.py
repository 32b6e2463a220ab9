"""How far a grid is, for the line that a person reads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW_SECONDS = 120.0  # the rate is that of the last two minutes
WINDOW_EVENTS = 8  # or of the last eight units, where units take longer
NEWS_SECONDS = 2.0  # between lines that say something new


@dataclass
class Progress:
    """Rows are (sample, cell) pairs; `done` counts failed ones too."""

    total: int
    done: int = 0
    failed: int = 0  # of the rows that this run computed
    actors: int = 0  # at work or ready for it
    note: str = ""  # what the run waits for, if anything
    stopped_by: int | None = None  # signal that ended the run early
    _events: deque[tuple[float, int]] = field(default_factory=deque, repr=False)  # (time, rows stored by then)

    def start(self) -> None:
        """Begin to measure: from now on rows are computed."""
        self._events = deque([(time.monotonic(), self.done)])

    def add(self, done: int, failed: int) -> None:
        """Count stored rows."""
        self.done += done
        self.failed += failed
        now = time.monotonic()
        self._events = self._events or deque([(now, self.done - done)])
        self._events.append((now, self.done))
        while len(self._events) > WINDOW_EVENTS and self._events[1][0] < now - WINDOW_SECONDS:
            self._events.popleft()

    @property
    def rate(self) -> float | None:
        """Rows per second lately; None before the first."""
        if len(self._events) < 2:
            return None
        (start, before), (_, after) = self._events[0], self._events[-1]
        return (after - before) / max(time.monotonic() - start, 1e-9)

    @property
    def eta_seconds(self) -> float | None:
        """Time left at the recent rate; None while there is no rate."""
        rate = self.rate
        return (self.total - self.done) / rate if rate else None

    def line(self) -> str:
        """For example '120/500 rows  3 failed  12.5 rows/s  about 30 s left  4 actors'."""
        parts = [f"{self.done}/{self.total} rows"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.rate:
            parts.append(f"{self.rate:.3g} rows/s")
        if self.eta_seconds:
            parts.append(f"about {duration(self.eta_seconds)} left")
        if self.actors:
            parts.append(f"{self.actors} actor{'s' if self.actors > 1 else ''}")
        return "  ".join([*parts, self.note] if self.note else parts)


def duration(seconds: float) -> str:
    """'40 s', '12 min' or '3.5 h'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Meter:
    """Prints a line every `seconds` while a grid runs, at its end, and sooner when there is something to wait for."""

    def __init__(self, say: Callable[[str], None], seconds: float) -> None:
        self._say, self._seconds = say, seconds
        self._next, self._note, self._complete = float("-inf"), "", False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        complete = progress.done >= progress.total
        ends = complete and not self._complete
        if progress.note not in ("", self._note):
            self._next = min(self._next, now + NEWS_SECONDS if self._note else now)
        self._note, self._complete = progress.note, complete
        if now >= self._next or ends:
            self._say(f"  {progress.line()}")
            self._next = now + self._seconds
