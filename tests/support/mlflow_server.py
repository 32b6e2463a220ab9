"""Real servers for the tests: `mlflow server` as a process, and PostgreSQL where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

START_SECONDS = 120.0


@dataclass
class MlflowServer:
    """`mlflow server` on a database, which can be stopped and started again at the same address."""

    database: str
    folder: Path
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when the server answers; fails with its log when it does not."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", self.database]
        command += ["--artifacts-destination", str(self.folder / "stored")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        log = (self.folder / "server.log").open("wb")
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                return
            time.sleep(0.2)
        self.stop()
        pytest.fail(f"mlflow server did not start: {(self.folder / 'server.log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Kill the server with its worker, as a crash would."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


@contextmanager
def serving(database: str, folder: Path) -> Iterator[MlflowServer]:
    server = MlflowServer(database, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """Address of a new PostgreSQL database. Skips the test where PostgreSQL or its Python driver is not installed."""
    pytest.importorskip("psycopg2", reason="no psycopg2: pip install psycopg2-binary")
    places = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    places += [Path(found).parent for name in ("initdb",) if (found := shutil.which(name))]
    if not places:
        pytest.skip("no PostgreSQL on this machine: apt-get install postgresql")
    binaries = places[0]
    root = os.geteuid() == 0
    if root and subprocess.run(["id", "postgres"], capture_output=True).returncode:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
    become = ["runuser", "-u", "postgres", "--"] if root else []
    folder = Path(tempfile.mkdtemp(prefix="indexmem-postgres-"))  # pytest's folders are closed to other users
    if root:
        shutil.chown(folder, "postgres")

    def call(*command: str) -> None:
        subprocess.run([*become, *command], check=True, capture_output=True, cwd=folder)

    try:
        data, port = folder / "data", free_port()
        call(str(binaries / "initdb"), "-D", str(data), "-U", "test", "-A", "trust", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        call(str(binaries / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg2://test@127.0.0.1:{port}/postgres"
        finally:
            call(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
