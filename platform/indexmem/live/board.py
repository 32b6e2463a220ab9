"""The status of every run under a root, as files: <root>/live/<name>.<kind>.json, each replaced in one step.

A driver writes its file every few seconds while it lives. Readers call a running one whose file is old, or whose
process is gone, stale.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from indexmem.files import write_whole
from indexmem.live.status import Kind, State, Status

FOLDER = "live"
WRITE_SECONDS = 2.0  # between two writes while a run goes on
STALE_SECONDS = 30.0  # without a write: a driver that only waits still writes


@dataclass(frozen=True)
class Record:
    """The content of a file."""

    name: str
    state: State
    started: float  # seconds since 1970, as is `updated`
    updated: float
    pid: int
    host: str
    status: Status
    schema: Literal[1] = 1


_RECORD = TypeAdapter(Record)


class StatusFile:
    """The file of one run, as its driver sees it."""

    def __init__(self, root: Path, name: str, kind: Kind) -> None:
        """Takes the file of this name, or, where another living driver has it, the next free one: smoke.grid-2.json."""
        self.name = name
        self.path = _free_path(root / FOLDER, f"{name}.{kind}")
        self._started, self._next, self._works = time.time(), float("-inf"), True

    def write(self, status: Status, state: State = "running", *, now: bool = False) -> None:
        """Replace the file, or do nothing when it was written just before and not `now`. Never ends a run."""
        moment = time.monotonic()
        if moment < self._next and not now:
            return
        self._next = moment + WRITE_SECONDS
        record = Record(self.name, state, self._started, time.time(), os.getpid(), socket.gethostname(), status)
        try:
            self.replace(record)
        except OSError as error:  # a full disk is for the results to complain about
            if self._works:
                warnings.warn(f"The live view is not written: {error}", RuntimeWarning, stacklevel=2)
            self._works = False

    def replace(self, record: Record) -> None:
        """Put `record` in place of what the file holds, in one step. Raises OSError."""
        write_whole(self.path, _RECORD.dump_json(record))


@dataclass(frozen=True)
class Entry:
    """A run as a reader sees it. Its texts are not to be trusted."""

    file: str  # "smoke.grid"
    record: Record
    age: float  # seconds since the last write
    stale: bool

    @property
    def state(self) -> State | Literal["stale"]:
        return "stale" if self.stale else self.record.state


def read_board(root: Path) -> list[Entry]:
    """Every run of a root, the running ones first, then the latest. Files that are no status are left out."""
    entries = [entry for path in (root / FOLDER).glob("[!.]*.json") if (entry := read_entry(path))]
    return sorted(entries, key=lambda entry: (entry.state != "running", -entry.record.updated))


def read_entry(path: Path) -> Entry | None:
    """One status file; None when it is missing or no status."""
    try:
        record = _RECORD.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    age = max(0.0, time.time() - record.updated)
    stale = record.state == "running" and (age > STALE_SECONDS or _gone(record.host, record.pid))
    return Entry(path.name.removesuffix(".json"), record, age, stale)


def _free_path(folder: Path, stem: str) -> Path:
    names = (f"{stem}.json" if number == 1 else f"{stem}-{number}.json" for number in count(1))
    return next(path for name in names if not _taken(path := folder / name))


def _taken(path: Path) -> bool:
    entry = read_entry(path)
    return entry is not None and entry.state == "running" and entry.record.pid != os.getpid()


def _gone(host: str, pid: int) -> bool:
    """Whether the process is known to be gone: only one of this machine can be looked up."""
    if host != socket.gethostname() or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False
