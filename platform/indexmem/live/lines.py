"""Progress as plain lines, for logs and pipes."""

from __future__ import annotations

import time
from collections.abc import Callable

from indexmem.live.status import Status

NEWS_SECONDS = 2.0  # between lines that say something new


class Meter:
    """Prints a line every `seconds` while a run goes on, at its end, and sooner when there is something to wait for."""

    def __init__(self, say: Callable[[str], None], seconds: float) -> None:
        self._say, self._seconds = say, seconds
        self._next, self._note, self._complete = float("-inf"), "", False

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        complete = status.done >= status.total
        ends = complete and not self._complete
        if status.note not in ("", self._note):
            self._next = min(self._next, now + NEWS_SECONDS if self._note else now)
        self._note, self._complete = status.note, complete
        if now >= self._next or ends:
            self._say(f"  {status.line()}")
            self._next = now + self._seconds

    def close(self) -> None:
        """Nothing: lines stay where they are."""
