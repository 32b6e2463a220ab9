"""`indexmem ui`: MLflow on one run root, until Ctrl-C ends it, and where everything is."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from types import FrameType
from typing import NoReturn

from indexmem.errors import UserError
from indexmem.tracking.server import HOST, database, mlflow_server

START_SECONDS = 60.0  # until MLflow answers; its first start makes tables
LOOK_SECONDS = 0.3
SHOWN_REPORTS = 10
EVALUATIONS = "indexmem/eval"  # experiment that is shown first


def ui(root: Path, port: int, *, browser: bool = False) -> int:
    """Say where reports lie, serve the MLflow of `root` on 127.0.0.1, and return 0 when told to end.

    `browser`: show its evaluations, or else what runs there are, in the user's browser.

    Raises UserError when there is nothing to serve, the port is taken, or MLflow ends by itself.
    """
    if not root.is_dir():
        raise UserError(f"No results at {root}. Run an experiment first: `make quickstart`, or name a root: --root.")
    _print_reports(root)
    if not database(root).is_file():
        raise UserError(
            f"No runs are published in {root} yet. Run an experiment first, or publish what is stored with "
            "`indexmem sync SPEC`. Where a tracking server is used, its runs are there."
        )
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        _serve(root, port, browser)
    except KeyboardInterrupt:
        return 0


def _print_reports(root: Path) -> None:
    """The newest reports and pages of nights, as files that a browser opens."""
    pages = [*(root / "reports").glob("[!.]*.html"), *(root / "nightly").glob("*/*/report.html")]
    pages = [page for page in pages if page.name != "index.html"]
    pages.sort(key=lambda page: page.stat().st_mtime, reverse=True)
    for page in pages[:SHOWN_REPORTS]:
        print(f"Report: {page.as_uri()}", flush=True)
    if len(pages) > SHOWN_REPORTS:
        print(f"and {len(pages) - SHOWN_REPORTS} older ones in {root / 'reports'} and {root / 'nightly'}", flush=True)


def _serve(root: Path, port: int, browser: bool) -> NoReturn:
    url = f"http://{HOST}:{port}"
    with mlflow_server(root, port) as process:
        print(f"MLflow: {url}  (starting)", flush=True)
        pages = _experiment_pages(url)
        for name, page in pages.items():
            print(f"  {name}: {page}", flush=True)
        if browser and pages:
            webbrowser.open(pages.get(EVALUATIONS) or next(iter(pages.values())))
        print(f"Results in {root}; Ctrl-C ends MLflow.", flush=True)
        process.wait()
    raise UserError("MLflow ended by itself; its last lines above say why.")


def _experiment_pages(url: str) -> dict[str, str]:
    """Experiment -> address of its list of runs, once MLflow answers; nothing if it takes too long."""
    body = json.dumps({"max_results": 100}).encode()
    search = urllib.request.Request(
        f"{url}/api/2.0/mlflow/experiments/search", body, {"Content-Type": "application/json"}
    )
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(search, timeout=START_SECONDS) as answer:
                found = json.load(answer).get("experiments", [])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(LOOK_SECONDS)
            continue
        pages = {e["name"]: f"{url}/#/experiments/{e['experiment_id']}/runs" for e in found if e["name"] != "Default"}
        return {name: f"{page}?workflowType=machine_learning" for name, page in sorted(pages.items())}
    return {}


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
