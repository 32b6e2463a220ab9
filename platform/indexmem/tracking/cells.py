"""What MLflow shows of a grid as numbers: the metrics of each cell, and means per method and budget.

Metric names carry their unit, and MLflow's charts group them by what stands before the slash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.results.intervals import Interval, mean_ci
from indexmem.results.samples import sample_scores
from indexmem.results.schema import FULL_LABEL, OK, alone_seconds, held_bytes
from indexmem.results.summary import MEAN, Summary
from indexmem.tracking.naming import budget_label, labels

IDENTITY = (
    "model",
    "model_fingerprint",
    "method",
    "method_params",
    "checkpoint",
    "budget",
    "ratio",
    "benchmark",
    "benchmark_build",
    "protocol",
    "length",
)
HASH_LENGTH = 16  # of the content hash of one trained module
MIB = 2**20


@dataclass(frozen=True)
class CellSummary:
    """One cell over its rows: `score` has its confidence interval, `measures` are means over OK rows."""

    cell_id: str
    identity: dict[str, Any]
    git_commit: str  # several, comma-separated, when another version of the code finished the cell
    samples: int  # OK rows
    failed: int
    began_at: int  # ms since 1970, of the oldest row's prefill; 0 when unknown
    measured_at: int  # the same of the newest row
    score: Interval | None  # None when no row is OK
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        return Budget.parse(self.identity["budget"])

    @property
    def weights(self) -> tuple[str, ...]:
        """Content hashes of the trained modules that the cell used; a cell's checkpoint strings them together."""
        text = self.identity["checkpoint"] or ""
        return tuple(text[start : start + HASH_LENGTH] for start in range(0, len(text), HASH_LENGTH))

    @property
    def held_share(self) -> float | None:
        """All bytes that decoding needs (K, V, indexer keys, memory) as a share of the full cache's."""
        held, full = self.measures.get("MiB/held"), self.measures.get("MiB/full_cache")
        return held / full if held is not None and full else None

    @property
    def metrics(self) -> dict[str, float]:
        counts = {"rows/ok": float(self.samples), "rows/failed": float(self.failed)}
        if self.score is None:
            return counts | self.measures
        interval = {"score": self.score.mean, "interval/low": self.score.low, "interval/high": self.score.high}
        return interval | counts | self.measures


def summarise_cells(rows: pa.Table) -> list[CellSummary]:
    """One summary per cell of `rows` (ROW_SCHEMA, one row per key), sorted by cell_id."""
    cells = sorted(pc.unique(rows["cell_id"]).to_pylist())
    return [_summarise_cell(cell, rows.filter(pc.equal(rows["cell_id"], cell))) for cell in cells]


def in_order(cells: Sequence[CellSummary], summary: Summary) -> list[CellSummary]:
    """The cells in the order of the report: the full cache, then methods from the best on, by budget and benchmark."""
    rank = {method: number for number, method in enumerate((FULL_LABEL, *summary.methods))}
    return sorted(cells, key=lambda cell: (rank[cell.identity["method"]], cell.budget, cell.identity["benchmark"]))


def held_shares(cells: Sequence[CellSummary]) -> dict[tuple[str, Budget], float]:
    """(method, budget) -> mean over its cells of the bytes held, as a share of the full cache's."""
    shares: dict[tuple[str, Budget], list[float]] = {}
    for cell in cells:
        if cell.held_share is not None:
            shares.setdefault((cell.identity["method"], cell.budget), []).append(cell.held_share)
    return {key: sum(found) / len(found) for key, found in sorted(shares.items())}


def grid_metrics(summary: Summary, cells: Sequence[CellSummary]) -> dict[str, float]:
    """Metrics of the whole grid: totals, and score/<method>/<budget>, the budget as r0.50, 512tokens or 8MiB."""
    named = labels(cell.identity["method"] for cell in cells)
    totals = {"rows/ok": summary.total - summary.failed, "rows/failed": summary.failed, "cells": len(cells)}
    scores = {
        f"score/{named[method]}/{budget_label(budget)}": cell.mean
        for (method, budget, benchmark), cell in sorted(summary.cells.items())
        if benchmark == MEAN
    }
    return {name: float(value) for name, value in totals.items()} | scores


def score_curves(summary: Summary) -> list[tuple[str, int, float]]:
    """Metric points (name, step, score) with the evicted percentage as step, which MLflow draws as a line per method.
    Its titles cut long names off, so the method stands near the front.

    Budgets that are no whole percentage have no step and are in `grid_metrics` alone.
    """
    named = labels(summary.methods)
    return [
        (f"by_evicted/{named[method]}", round(100 * budget.ratio), summary.cells[key].mean)
        for method in summary.methods
        for budget in summary.budgets
        if budget.ratio is not None
        and math.isclose(100 * budget.ratio, round(100 * budget.ratio), abs_tol=1e-9)
        and (key := (method, budget, MEAN)) in summary.cells
    ]


def _summarise_cell(cell_id: str, rows: pa.Table) -> CellSummary:
    finished = rows.filter(pc.equal(rows["status"], OK))
    by_sample = sample_scores(rows, ())
    scores, groups = by_sample["score"].to_numpy(), by_sample["group"].to_numpy()
    return CellSummary(
        cell_id=cell_id,
        identity={name: rows[name][0].as_py() for name in IDENTITY},
        git_commit=",".join(sorted(set(filter(None, rows["git_commit"].to_pylist())))),
        samples=finished.num_rows,
        failed=rows.num_rows - finished.num_rows,
        began_at=began_at(rows) or 0,
        measured_at=(pc.max(rows["created_at"].cast(pa.int64())).as_py() or 0) // 1000,
        score=mean_ci(scores, clusters=groups) if len(scores) else None,
        measures=_measures(finished),
    )


def began_at(rows: pa.Table) -> int | None:
    """When the first row's work began, ms since 1970: what was measured of it ended when the row was made."""
    times = (rows[name] for name in ("prefill_seconds", "score_seconds", "decode_seconds"))
    taken = reduce(pc.add, (pc.fill_null(time, 0.0) for time in times))
    begun = pc.subtract(
        pc.divide(pc.cast(rows["created_at"].cast(pa.int64()), pa.float64()), 1e3), pc.multiply(taken, 1e3)
    )
    first = pc.min(begun).as_py()
    return None if first is None else int(first)


def _measures(rows: pa.Table) -> dict[str, float]:
    """Means of what was measured per sample, to four decimals; what no row has is absent, and not zero."""
    columns = {
        "tokens/kept": (rows["kept_mean"], 1),
        "tokens/answer": (rows["new_tokens"], 1),
        "percent/evicted": (rows["measured_ratio"], 100),
        "percent/as_full_cache": (rows["fidelity_top1"], 100),
        "nats/from_full_cache": (rows["fidelity_kl"], 1),
        "MiB/kv": (rows["kv_bytes"], 1 / MIB),
        "MiB/indexer": (rows["indexer_bytes"], 1 / MIB),
        "MiB/memory": (rows["memory_bytes"], 1 / MIB),
        "MiB/held": (held_bytes(rows), 1 / MIB),
        "MiB/full_cache": (rows["full_kv_bytes"], 1 / MIB),
        "ms/prefill": (rows["prefill_seconds"], 1000),
        "ms/scoring": (rows["score_seconds"], 1000),
        "ms/decode": (alone_seconds(rows), 1000),
    }
    means = {name: (pc.mean(column).as_py(), factor) for name, (column, factor) in columns.items()}
    known = {name: mean * factor for name, (mean, factor) in means.items() if mean is not None}
    return {name: round(mean, 4) for name, mean in known.items() if math.isfinite(mean)}
