"""One run shown everywhere at once: on the terminal, and on the board that the report server reads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO

from indexmem.live.board import StatusFile
from indexmem.live.lines import Meter
from indexmem.live.status import Kind, State, Status, one_line

LOOK_SECONDS = 0.5


class Display(Protocol):
    """Shows a status as often as it likes to."""

    def __call__(self, status: Status) -> None: ...

    def close(self) -> None: ...


class LiveView:
    """Call it with each new status. As a context it says how the run ended."""

    def __init__(self, file: StatusFile, display: Display) -> None:
        self._file, self._display = file, display
        self._last: Status | None = None
        self._look: Callable[[], Status] | None = None
        self._next = float("-inf")

    @classmethod
    def open(cls, root: Path, name: str, kind: Kind, say: Callable[[str], None], seconds: float) -> LiveView:
        """A picture where stderr is a terminal; else a line every `seconds` through `say`."""
        return cls(StatusFile(root, name, kind), make_display(f"{name} {kind}", say, seconds))

    def __call__(self, status: Status) -> None:
        self._last = status
        self._display(status)
        self._file.write(status)

    def watch(self, look: Callable[[], Status]) -> None:
        """Show what `look` returns, at most twice a second: for runs that have news more often than anyone reads it."""
        self._look = look
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_SECONDS
            self(look())

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._look is not None:
            self(self._look())
        self._display.close()
        if self._last is not None:
            self._file.write(*_ending(self._last, error), now=True)


def make_display(title: str, say: Callable[[str], None], seconds: float, stream: TextIO | None = None) -> Display:
    """For what `stream` (default: stderr) is."""
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from indexmem.live.screen import Screen

        return Screen(title)
    return Meter(say, seconds)


def _ending(last: Status, error: BaseException | None) -> tuple[Status, State]:
    if error is None:
        return replace(last, actors=0), "done" if last.done >= last.total else "stopped"
    if not isinstance(error, Exception):  # Ctrl-C
        return replace(last, actors=0), "stopped"
    return replace(last, actors=0, note=one_line(f"{type(error).__name__}: {error}")), "failed"
