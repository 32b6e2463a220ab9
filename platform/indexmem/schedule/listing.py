"""The last nights as a table."""

from __future__ import annotations

from indexmem.progress.status import duration
from indexmem.schedule.night import Nights

HEAD = ("night", "status", "rows", "failed", "worse", "better", "time", "commit", "page")


def nights_table(nights: Nights, last: int) -> str:
    """Newest first; a night without a verdict is unfinished."""
    lines: list[tuple[str, ...]] = [HEAD]
    for night in nights.all()[:last]:
        verdict, spent = night.verdict(), duration(night.record().seconds)
        if verdict is None:
            lines.append((str(night.date), "unfinished", "", "", "", "", spent, "", str(night.folder)))
            continue
        counts = (
            sum(suite.rows for suite in verdict.suites),
            sum(suite.failed for suite in verdict.suites),
            len(verdict.regressions),
            len(verdict.improvements),
        )
        tail = (spent, verdict.commit[:12], str(night.page))
        lines.append((str(night.date), verdict.status, *map(str, counts), *tail))
    if len(lines) == 1:
        return f"no nights yet under {nights.folder}"
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
