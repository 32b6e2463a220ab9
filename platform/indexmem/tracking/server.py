"""The MLflow UI on a run root, for one person on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from indexmem.errors import UserError
from indexmem.tracking.mlflow_store import sqlite_uri

HOST = "127.0.0.1"
END_SECONDS = 10.0  # between asking the server to end and ending it


def database(root: Path) -> Path:
    """Where the runs of this root are published, unless a tracking server is used."""
    return root / "mlflow.db"


@contextmanager
def mlflow_server(root: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`mlflow server` as a child process, which ends with the block, as all of its own children do.

    Raises UserError when the port is taken.
    """
    _check_free(port)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--backend-store-uri", sqlite_uri(database(root))],
        cwd=root,
        # One person reads results: without the job runner the server is 2 processes and a third of the memory.
        env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | os.environ,
        start_new_session=True,  # so that Ctrl-C reaches us alone, and we end all of it
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise UserError(f"MLflow cannot have port {port} on {HOST}: {error}. Choose another.") from None
