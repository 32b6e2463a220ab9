"""Files and folders that several processes may want to build: one does, and they are complete or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def announce(message: str) -> None:
    """One progress line on stderr, so that stdout stays free for results."""
    print(f"indexmem: {message}", file=sys.stderr, flush=True)


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Hold the right to build `target`; other processes of this machine wait.

    The kernel drops the lock when its holder dies, so it is never stale. The lock file itself stays: removing it
    would let two processes lock two different files of the same name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f"{target.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"waiting for another process that prepares {target.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A fresh folder on the file system of `target`, removed at the end. Call it inside `exclusive(target)`.

    Folders that killed processes left behind are removed first. Each folder has its own name, because a child of a
    killed process may still write to the old one.
    """
    prefix = f"{target.name}.partial-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(source: Path, target: Path) -> None:
    """Rename a finished file or folder to `target`; its content reaches the disk before its name does."""
    for path in [source, *source.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors writes files that only their owner can read
        _sync(path)
    os.replace(source, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
