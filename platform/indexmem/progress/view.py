"""Shows how far a run is: a picture that redraws itself on a terminal, lines in a log or a pipe. All on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TextIO

from indexmem.progress.status import RunStatus

LINE_SECONDS = 10.0  # between lines of a log
NEWS_SECONDS = 2.0  # between lines that say something new
LOOK_SECONDS = 0.5  # between looks at a run that has news more often than anyone reads it


def say(message: str) -> None:
    """One line on stderr: stdout is for results."""
    print(message, file=sys.stderr, flush=True)


class Display(Protocol):
    """Shows a status as often as it likes to."""

    def __call__(self, status: RunStatus) -> None: ...

    def close(self) -> None: ...


class ProgressView:
    """Call it with each new status. As a context it shows the last one, and then ends the display."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._look: Callable[[], RunStatus] | None = None
        self._next = float("-inf")

    @classmethod
    def open(cls, title: str) -> ProgressView:
        """A picture under `title` if stderr is a terminal; else a line every LINE_SECONDS."""
        return cls(make_display(title, say, LINE_SECONDS))

    def __call__(self, status: RunStatus) -> None:
        self._display(status)

    def watch(self, look: Callable[[], RunStatus]) -> None:
        """Show what `look` returns, at most twice a second."""
        self._look = look
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_SECONDS
            self(look())

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._look is not None:
            self(self._look())
        self._display.close()


class LogLines:
    """Prints a line every `seconds` while a run goes on, at its end, and sooner when there is something to wait for.

    The first failure of each kind has a line of its own: nobody should have to wait for the report to see it.
    """

    def __init__(self, say: Callable[[str], None], seconds: float) -> None:
        self._say, self._seconds = say, seconds
        self._next, self._note, self._complete = float("-inf"), "", False
        self._kinds = 0  # of failures that were printed

    def __call__(self, status: RunStatus) -> None:
        for failure in status.kinds[self._kinds :]:
            self._say(f"  failed: {failure.where}: {failure.reason}")
        self._kinds = len(status.kinds)
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


def make_display(title: str, say: Callable[[str], None], seconds: float, stream: TextIO | None = None) -> Display:
    """For what `stream` (default: stderr) is: a terminal, or a log with a line every `seconds` through `say`."""
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from indexmem.progress.screen import Screen

        return Screen(title)
    return LogLines(say, seconds)
