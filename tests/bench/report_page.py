"""How large a report of many cells is and how fast Chromium opens it.

    python tests/bench/report_page.py --cells 10000 --samples 3

Times are of this machine at this moment: `load` is navigation to the load event, `scores`, `samples` and `charts` are
when the table by benchmark, the first samples and the first eager charts stand in the page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

from chrome import Chrome
from report_zoo import many_rows

from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.results.schema import RETENTION_SCHEMA

LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
STAGES = {
    "scores": "document.querySelector('.by-task tbody td')",
    "samples": "document.documentElement.dataset.samples",
    "charts": "document.documentElement.dataset.charts",
}


def measure(cells: int, samples: int, folder: Path) -> dict[str, Any]:
    """Write a report of synthetic rows and open it: sizes in MB, times in ms, DOM nodes once all has settled."""
    rows = many_rows(cells, samples)
    begun = time.perf_counter()
    page = write_report(Experiment(), rows, RETENTION_SCHEMA.empty_table(), folder / "report.html")
    written = time.perf_counter() - begun
    with Chrome() as chrome:
        seen = chrome.open(page)
        nodes_at_load = seen.evaluate("document.querySelectorAll('*').length")
        times = {}
        for name, there in STAGES.items():
            seen.until(there)
            times[name] = round(seen.evaluate("performance.now()"))
        return {
            "cells": len(rows["cell_id"].unique()),
            "rows": rows.num_rows,
            "megabytes": round(page.stat().st_size / 1e6, 1),
            "write_seconds": round(written, 1),
            "load_ms": round(seen.evaluate(LOADED)),
            **{f"{name}_ms": value for name, value in times.items()},
            "nodes_at_load": nodes_at_load,
            "nodes": seen.evaluate("document.querySelectorAll('*').length"),
            "complaints": seen.complaints,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, value in measure(arguments.cells, arguments.samples, Path(folder)).items():
            print(f"{name:>16}  {value}")


if __name__ == "__main__":
    main()
