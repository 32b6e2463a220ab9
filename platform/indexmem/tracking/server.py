"""The MLflow UI on a run root, for one person on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from indexmem.errors import UserError
from indexmem.tracking.mlflow_store import sqlite_uri

HOST = "127.0.0.1"
END_SECONDS = 10.0  # between asking the server to end and ending it


class MlflowServer:
    """`mlflow server` as a child process; as a context it is ended with all of its own children."""

    def __init__(self, root: Path, port: int) -> None:
        """Raises UserError when the port is taken."""
        self._root, self._port = root, port
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except (OSError, OverflowError) as error:
                raise UserError(f"MLflow cannot have port {port} on {HOST}: {error}. Choose another.") from None

    @staticmethod
    def database(root: Path) -> Path:
        """Where the runs of this root are published, unless a tracking server is used."""
        return root / "mlflow.db"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def __enter__(self) -> MlflowServer:
        command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(self._port)]
        # One person reads results: without the job runner the server is 2 processes and a third of the memory.
        environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | os.environ
        self._process = subprocess.Popen(
            [*command, "--workers", "1", "--backend-store-uri", sqlite_uri(self.database(self._root))],
            cwd=self._root,
            env=environment,
            start_new_session=True,  # so that Ctrl-C reaches us alone, and we end all of it
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """Its exit code, once it ends by itself."""
        return self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
