"""Who works on what: lease files, so that two processes on one store never compute or publish the same.

Each process writes one file that lists its work, the cells of a grid or one name, and touches it every few seconds; an
untouched file is void. No file locks: files are created under names of their own and listed afterwards, which works on
network file systems too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from indexmem.errors import UserError
from indexmem.files import write_whole

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 90.0  # without a heartbeat: well above what network file systems cache attributes for
WAIT_SECONDS = 0.5  # between looks at another holder's lease
SETTLE_SECONDS = 0.5  # at most this long before a second try, when two drivers claimed at the same moment


@dataclass(frozen=True)
class Lease:
    """One process' claim, as others read it."""

    path: Path
    owner: str  # "alice@host, pid 123, since 2026-01-01T12:00:00"
    machine: str
    pid: int
    cells: frozenset[str]  # or other names of work
    touched: float  # the file system's clock

    @property
    def abandoned(self) -> bool:
        """Whether its process is known to be gone. Only a process of this machine can be looked up."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


class WorkTaken(UserError):
    """Another process does this work. `lease` is its claim."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"{lease.owner} does this already ({lease.path}). Wait for it, or end it and start this command again."
        )
        self.lease = lease


@contextlib.contextmanager
def hold(folder: Path, work: str, wait: Callable[[Lease], None] | None = None) -> Iterator[Leases]:
    """The lease on one piece of work, given back at the end of the block. It may be lost before: see `check`.

    Where another process holds it: with `wait`, calls that once with its lease and waits; else raises WorkTaken.
    """
    with Leases(folder) as leases:
        mine, held = leases.claim({work})
        if not mine:
            if wait is None:
                raise WorkTaken(held[0])
            wait(held[0])
        while not mine:
            time.sleep(WAIT_SECONDS)
            mine, _ = leases.claim({work})
        yield leases


class Leases:
    """The leases of a store. As a context it gives back what it holds."""

    def __init__(self, folder: Path, heartbeat: float = HEARTBEAT_SECONDS, stale: float = STALE_SECONDS) -> None:
        """`folder` belongs to the store and is created at the first claim. Times in seconds."""
        self._folder, self._heartbeat, self._stale = folder, heartbeat, stale
        self._path = folder / f"{uuid.uuid4().hex}.json"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = False  # somebody else removed it, as a takeover does

    def __enter__(self) -> Leases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def claim(self, cells: Set[str]) -> tuple[frozenset[str], list[Lease]]:
        """Take those of `cells` that no living process holds. Returns them, and the leases on the others."""
        self.release()
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            held = [lease for lease in self.others() if lease.cells & cells]
            free = frozenset(cells).difference(*(lease.cells for lease in held))
            if not free:
                return free, held
            self._write(free)
            # Whoever wrote later sees the other's file; when both do, both step back and try again.
            if not any(lease.cells & free for lease in self.others()):
                self._thread = threading.Thread(target=self._beat, daemon=True)
                self._thread.start()
                return free, held
            self._path.unlink(missing_ok=True)
            time.sleep(random.uniform(0, SETTLE_SECONDS))

    def release(self) -> None:
        """Give back what is held, if anything."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self._stop.clear()
        self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raises UserError once the lease is lost."""
        if self.lost:
            raise UserError(
                f"The lease on this work ({self._path}) was taken over while this run was working or stood still. "
                "What is finished is stored; start the same command again to do the rest."
            )

    def others(self) -> list[Lease]:
        """Leases of other living processes. Void ones are removed."""
        now = self._clock()
        leases = []
        for path in self._folder.glob("*.json"):
            lease = None if path == self._path else _read(path)
            if lease is None:
                continue
            if lease.abandoned or now - lease.touched > self._stale:
                path.unlink(missing_ok=True)
            else:
                leases.append(lease)
        return leases

    def _clock(self) -> float:
        """The file system's time, since clocks of machines differ."""
        probe = self._path.with_suffix(".clock")
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return now

    def _write(self, cells: frozenset[str]) -> None:
        user = os.environ.get("USER") or os.environ.get("LOGNAME") or "?"
        owner = f"{user}@{socket.gethostname()}, pid {os.getpid()}, since {time.strftime('%Y-%m-%dT%H:%M:%S')}"
        content = {"owner": owner, "machine": _machine(), "pid": os.getpid(), "cells": sorted(cells)}
        write_whole(self._path, json.dumps(content))
        self.lost = False

    def _beat(self) -> None:
        while not self._stop.wait(self._heartbeat):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                self.lost = True
                return
            except OSError:
                continue  # the file system is away for a moment; the next beat may get through


def _read(path: Path) -> Lease | None:
    """None when it vanished meanwhile or is no lease."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        with path.open() as stream:  # opening makes a network file system ask for the current time of touch
            content = json.load(stream)
            touched = os.fstat(stream.fileno()).st_mtime
        return Lease(path, content["owner"], content["machine"], content["pid"], frozenset(content["cells"]), touched)
    return None


def _machine() -> str:
    """Names the table of processes that this one's pid belongs to; "" where there is no such name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
