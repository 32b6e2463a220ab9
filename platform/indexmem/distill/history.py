"""Training metrics on disk: the record that MLflow mirrors and the report plots.

Steps are grouped into files by a fixed span, each rewritten whole and atomically, so a resumed run that repeats steps
replaces their rows instead of doubling them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from indexmem.files import write_whole


class History:
    """Rows {'step': int, metric: float, ...} under one folder."""

    def __init__(self, folder: str | Path, span: int = 100) -> None:
        self.folder = Path(folder)
        self.span = span

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Store the rows; of rows with the same step, the last written wins."""
        by_span: dict[int, dict[int, dict[str, Any]]] = {}
        for row in rows:
            by_span.setdefault(row["step"] // self.span, {})[row["step"]] = row
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, fresh in by_span.items():
            path = self.folder / f"steps-{number * self.span:08d}.jsonl"
            merged = {row["step"]: row for row in self._read_file(path)} | fresh
            write_whole(path, "".join(json.dumps(merged[step]) + "\n" for step in sorted(merged)))

    def read(self) -> list[dict[str, Any]]:
        """All rows by step."""
        return [row for path in sorted(self.folder.glob("steps-*.jsonl")) for row in self._read_file(path)]

    @staticmethod
    def _read_file(path: Path) -> list[dict[str, Any]]:
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
