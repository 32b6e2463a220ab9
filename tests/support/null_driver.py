"""Drivers of a null grid as processes of their own, and the actors that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import null_grid
import psutil
import pyarrow.parquet as pq
from grids import remaining
from null_grid import answer, null_plan, null_spec

from indexmem.results.schema import OK


class Driver:
    """Runs `null_grid.py` under `root`; what it says is appended to `log`."""

    def __init__(self, root: Path, address: str, seconds: float, *overrides: str, log: str = "driver.log") -> None:
        self.log = root / log
        command = [sys.executable, null_grid.__file__, str(root), address, str(seconds), *overrides]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, cwd=root, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait(self, seconds: float = 180.0) -> int:
        return self.process.wait(timeout=seconds)

    def kill(self) -> None:
        """SIGKILL, as often as one likes."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        """Ctrl-C in its terminal: SIGINT to the driver and to whatever shares its process group."""
        os.killpg(self.process.pid, signal.SIGINT)


def actors(title: str = "ray::Evaluator") -> list[psutil.Process]:
    """Actor processes that descend from this one; title "Evaluator.evaluate" finds those at work."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if title in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def part_files(root: Path) -> list[Path]:
    return list((root / "results" / "rows").glob("*/part-*.parquet"))


def assert_complete(root: Path, *overrides: str) -> None:
    """On disk is every row of the grid, exactly once, with the answer of an undisturbed run, and nothing else."""
    plan = null_plan(null_spec(root, *overrides))
    expected = {
        (cell.id, sample.id, 0): (*answer(sample, cell), OK)
        for cell in plan.cells
        for sample in plan.samples[cell.benchmark]
    }
    rows = [row for part in part_files(root) for row in pq.read_table(part).to_pylist()]
    found = {(r["cell_id"], r["sample_id"], r["repeat"]): (r["prediction"], r["score"], r["status"]) for r in rows}
    assert found == expected
    assert len(rows) == len(expected), "a row is there twice"
    assert remaining(plan) == []
    assert [path for path in root.rglob("*") if path.name.startswith(".tmp-")] == []
    assert list((root / "leases").iterdir()) == []
