"""The pages: an index of what is there, and one page per live run. Rendered whole; a script swaps in what is new."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from indexmem.live.board import FOLDER, read_board, read_entry
from indexmem.live.status import duration, one_line, size
from indexmem.serve import charts
from indexmem.serve.catalog import REPORTS, nights, reports

REFRESH_SECONDS = 2
MARKS = {"running": "●", "done": "✓", "stopped": "■", "failed": "✕", "stale": "?"}  # so that colour is not needed


class Pages:
    """The pages of one run root. Text of runs is escaped by the templates."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._environment = Environment(
            loader=PackageLoader("indexmem.serve"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"moment": moment, "duration": duration, "size": size, "line": one_line}
        self._environment.globals |= {"marks": MARKS, "refresh": REFRESH_SECONDS}

    def index(self) -> str:
        """Live runs with their progress, reports, nights."""
        return self._environment.get_template("index.html.j2").render(
            root=self._root, runs=read_board(self._root), reports=reports(self._root), nights=nights(self._root)
        )

    def live(self, file: str) -> str | None:
        """The page of one run; None when there is no such run."""
        entry = read_entry(self._root / FOLDER / f"{file}.json")
        if entry is None:
            return None
        status, report = entry.record.status, f"{entry.record.name}.html"
        return self._environment.get_template("live.html.j2").render(
            entry=entry,
            record=entry.record,
            status=status,
            report=report if (self._root / REPORTS / report).is_file() else None,
            score_chart=charts.score_chart(status.scores) if status.scores else None,
            curves=[(curve, charts.curve_chart(curve)) for curve in status.curves],
            chart=charts,
        )


def moment(seconds: float) -> str:
    """Seconds since 1970 as local time: '2026-01-31 12:00'."""
    try:
        return dt.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # no clock shows this
        return "unknown"
