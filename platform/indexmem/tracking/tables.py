"""A grid's tables in the form of `mlflow.log_table`, which MLflow's UI shows and `mlflow.load_table` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from indexmem.results.summary import FULL, Summary
from indexmem.tracking.summary import CellSummary

TABLES_TAG = "mlflow.loggedArtifacts"
SCORES, CELLS = "tables/scores.json", "tables/cells.json"


def score_rows(summary: Summary) -> list[dict[str, Any]]:
    """One row per method (best first), budget and benchmark or 'mean', with its standing among the methods there."""
    places = {method: place for place, method in enumerate((FULL, *summary.methods))}
    found = []
    for method, budget, benchmark in sorted(summary.cells, key=lambda key: (places[key[0]], *key[1:])):
        cell = summary.cells[method, budget, benchmark]
        contest = summary.contests.get((budget, benchmark))
        standing = "reference" if method == FULL or contest is None else contest.standing(method)
        names = {"method": method, "budget": str(budget), "benchmark": benchmark}
        found.append(
            names | {"score": cell.mean, "low": cell.low, "high": cell.high, "n": cell.n, "standing": standing}
        )
    return found


def cell_rows(cells: Sequence[CellSummary]) -> list[dict[str, Any]]:
    """One row per cell: what it is and all that was measured."""
    return [{name: cell.identity[name] for name in ("method", "budget", "benchmark")} | cell.metrics for cell in cells]


def table_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as an artifact; what a row lacks is null.

    `mlflow.log_table` itself would append to the table of an earlier publication.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return json.dumps({"columns": columns, "data": [[row.get(name) for name in columns] for row in rows]})


def tables_tag(paths: Iterable[str]) -> dict[str, str]:
    """The tag by which MLflow knows which artifacts are tables."""
    return {TABLES_TAG: json.dumps([{"path": path, "type": "table"} for path in paths])}
