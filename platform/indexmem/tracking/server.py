"""The MLflow UI on a run root, for one person on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from indexmem.errors import UserError


def serve(root: Path, port: int) -> int:
    """Run `mlflow server` on 127.0.0.1 until interrupted. Raises UserError when the root has no results yet."""
    database = root / "mlflow.db"
    if not database.is_file():
        raise UserError(f"No MLflow database at {database}. Run an experiment first: `make quickstart`.")
    print(f"MLflow: http://127.0.0.1:{port}  (results in {root}; stop with Ctrl-C)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # One person reads results: without the job runner the server is 2 processes and a third of the memory.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | os.environ
    return subprocess.call([*command, "--backend-store-uri", f"sqlite:///{database}"], cwd=root, env=environment)
