"""`indexmem ui`: the report server and MLflow on one run root, until Ctrl-C ends both."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from indexmem.errors import UserError
from indexmem.serve.server import ReportServer
from indexmem.tracking.server import MlflowServer


def ui(root: Path, port: int, mlflow_port: int) -> int:
    """Serve `root` on 127.0.0.1, say where, and return 0 when told to end.

    Raises UserError when there is nothing to serve, a port is taken, or MLflow ends by itself.
    """
    if not root.is_dir():
        raise UserError(f"No results at {root}. Run an experiment first: `make quickstart`, or name a root: --root.")
    if port == mlflow_port:
        raise UserError(f"--port and --mlflow-port are both {port}; choose two ports.")
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        _serve(root, port, mlflow_port)
    except KeyboardInterrupt:
        return 0


def _serve(root: Path, port: int, mlflow_port: int) -> NoReturn:
    with ExitStack() as servers:
        reports = servers.enter_context(ReportServer(root, port))
        published = MlflowServer.database(root).is_file()
        mlflow = servers.enter_context(MlflowServer(root, mlflow_port)) if published else None
        print(f"Runs and reports: {reports.url}", flush=True)
        nothing = "nothing is published in this root yet; start again after the first run"
        print(f"MLflow:           {mlflow.url if mlflow else nothing}", flush=True)
        print(f"Results in {root}; Ctrl-C ends both.", flush=True)
        if mlflow is None:
            threading.Event().wait()
        else:
            mlflow.wait()
    raise UserError("MLflow ended by itself; its last lines above say why.")


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
