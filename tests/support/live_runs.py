"""Statuses as drivers write them, friendly and hostile, for tests of the pages."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from indexmem.live.board import Record, StatusFile
from indexmem.live.status import Curve, Failure, MethodScores, Scores, Status

ATTACK = "document.documentElement.dataset.pwned = 1"
HOSTILE = f"</script><script>{ATTACK}</script><img src=x onerror='{ATTACK}'>\u202egnp.exe " + "W" * 20_000
METHODS = ("indexmem", "snapkv", "knorm", HOSTILE)
BUDGETS = ("50%", "75%", "90%")
SCORES = Scores(
    BUDGETS,
    tuple(
        MethodScores(method, tuple(0.9 - 0.1 * row - 0.2 * column for column in range(3)), (40, 40, 7))
        for row, method in enumerate(METHODS)
    ),
)
GRID = Status(
    *("grid", "rows", 4800, 1204, 3, 12.5, 288.0, 4, 3510.2, 48, 12 * 2**20),
    note="waiting for 3 cells",
    failures=(Failure("knorm 75% niah_single_1/3", HOSTILE), Failure("שלום 50%", "שגיאה ValueError (file.py)")),
    scores=SCORES,
)
LOSS = Curve("loss indexer", tuple((step, 1 / (1 + step / 10)) for step in range(40)))
TRAINING = Status("training", "steps", 80, 40, rate=1.2, tokens_per_second=2400.0, actors=2, curves=(LOSS,))


def write_run(root: Path, name: str, status: Status, **changes: object) -> Path:
    """A status file of this process, with fields of its record replaced."""
    file = StatusFile(root, name, status.kind)
    now = time.time()
    record = Record(name, "running", now - 60, now, os.getpid(), socket.gethostname(), status)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    file.replace(replace(record, **changes))
    return file.path


def fill(root: Path) -> None:
    """A run of every kind and state, two reports and two nights."""
    write_run(root, "smoke", GRID)
    write_run(root, "smoke", TRAINING)
    write_run(root, "paper", GRID, state="running", updated=time.time() - 300)
    write_run(root, "old", replace(GRID, done=4800, failed=0, note="", failures=()), state="done")
    write_run(root, "broken", replace(GRID, note=f"ValueError: {HOSTILE}"), state="failed")
    (root / "reports" / "paper").mkdir(parents=True)
    (root / "reports" / "smoke.html").write_text("<!doctype html><title>smoke</title><p id=report>The report</p>")
    (root / "reports" / "paper" / "table.csv").write_text("method,score\n")
    (root / "reports" / ".hidden.html").write_text("a draft")
    for date, verdict in (("2026-01-01", '{"regressions": []}'), ("2026-01-02", '{"regressions": [1, 2]}')):
        night = root / "nightly" / "main" / date
        night.mkdir(parents=True)
        (night / "record.json").write_text("{}")
        (night / "verdict.json").write_text(verdict)
        (night / "report.html").write_text("<!doctype html><p>night</p>")
    (root / "mlflow.secret").write_text("not for the web")
