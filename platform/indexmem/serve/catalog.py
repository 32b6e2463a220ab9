"""What lies under a run root: reports and nights, with date and size. The live runs are `live.board`'s."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

REPORTS, NIGHTS = "reports", "nightly"
PAGE = "report.html"  # of a night


@dataclass(frozen=True)
class Report:
    """A file of the reports folder."""

    path: str  # below the folder, with slashes
    modified: float  # seconds since 1970
    bytes: int


@dataclass(frozen=True)
class Night:
    """One night of a nightly spec."""

    name: str
    date: str
    page: bool  # whether it has a report
    regressions: int | None  # None while there is no verdict


def reports(root: Path) -> list[Report]:
    """Every HTML report, the latest first."""
    folder = root / REPORTS
    found = []
    for path in folder.rglob("*.html"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            stat = path.stat()
            found.append(Report(path.relative_to(folder).as_posix(), stat.st_mtime, stat.st_size))
    return sorted(found, key=lambda report: (-report.modified, report.path))


def nights(root: Path) -> list[Night]:
    """Every night that left a record, the latest first."""
    folders = [record.parent for record in (root / NIGHTS).glob("[!.]*/[!.]*/record.json")]
    found = [Night(f.parent.name, f.name, (f / PAGE).is_file(), _regressions(f / "verdict.json")) for f in folders]
    return sorted(found, key=lambda night: (night.date, night.name), reverse=True)


def _regressions(path: Path) -> int | None:
    try:
        return len(json.loads(path.read_text(encoding="utf-8"))["regressions"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
