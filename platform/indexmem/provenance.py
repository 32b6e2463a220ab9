"""Which code, library versions and machine produced a result."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("indexmem", "torch", "transformers", "kvpress", "ray")
COMMIT_VARIABLE = "INDEXMEM_GIT_COMMIT"
DIRTY = "-dirty"
GIT_SECONDS = 5.0

_SOURCE = Path(__file__).resolve().parent  # the package folder: its files decide what a run computes


def provenance() -> dict[str, Any]:
    """{'git_commit': str, 'git_dirty': bool, 'versions': {package: version}, 'host': str}. Never fails.

    `git_commit` is the hash of the checkout that holds the package, with "-dirty" appended when files of the package
    differ from it; "" when unknown. Where the code was shipped without .git, it is taken from INDEXMEM_GIT_COMMIT,
    which takes the same form.
    """
    commit = _checkout() or os.environ.get(COMMIT_VARIABLE, "").strip()
    versions = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    return {
        "git_commit": commit,
        "git_dirty": commit.endswith(DIRTY),
        "versions": {name: found for name, found in versions.items() if found},
        "host": socket.gethostname(),
    }


def _checkout() -> str:
    """Commit of the repository that tracks the package; "" also for an installed copy inside some other repository."""
    if not _git("ls-files", "--", "__init__.py"):
        return ""
    commit = _git("rev-parse", "HEAD")
    return commit + DIRTY if commit and _git("status", "--porcelain", "--", ".") else commit


def _git(*arguments: str) -> str:
    # Inside a git hook GIT_DIR and its like point at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        command = ["git", "-C", str(_SOURCE), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, env=environment, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
