"""What a team wants to see of a grid: a summary of each cell, means per method and budget, a Markdown note."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.results.schema import OK
from indexmem.results.stats import Interval, mean_ci, mean_over
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
    "length",
)
MEASURES = (
    "kept_mean",
    "measured_ratio",
    "kv_bytes",
    "full_kv_bytes",
    "indexer_bytes",
    "memory_bytes",
    "prefill_seconds",
    "score_seconds",
    "decode_seconds",
)


@dataclass(frozen=True)
class CellSummary:
    """One cell over its rows: `score` has its confidence interval, `measures` are means over OK rows."""

    cell_id: str
    identity: dict[str, Any]
    git_commit: str  # several, comma-separated, when the cell was finished by another version of the code
    samples: int  # OK rows
    failed: int
    score: Interval | None  # None when no row is OK
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        return Budget.parse(self.identity["budget"])

    @property
    def metrics(self) -> dict[str, float]:
        counts = {"samples": float(self.samples), "failed": float(self.failed)}
        if self.score is None:
            return counts | self.measures
        interval = {"score": self.score.mean, "score_ci_low": self.score.low, "score_ci_high": self.score.high}
        return counts | interval | self.measures


def summarise(rows: pa.Table) -> list[CellSummary]:
    """One summary per cell of `rows` (ROW_SCHEMA, one row per key), sorted by cell_id."""
    cells = sorted(pc.unique(rows["cell_id"]).to_pylist())
    return [_summarise_cell(cell, rows.filter(pc.equal(rows["cell_id"], cell))) for cell in cells]


def overall(cells: Sequence[CellSummary]) -> dict[tuple[str, Budget], Interval]:
    """(method, budget) -> mean score over benchmarks, each benchmark weighing the same.

    Methods that lack a score on some benchmark are left out: their mean would be over other questions.
    """
    benchmarks = {cell.identity["benchmark"] for cell in cells}
    scored: dict[tuple[str, Budget], dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.score is not None:
            scored[cell.identity["method"], cell.budget][cell.identity["benchmark"]].append(cell.score)
    return {
        key: mean_over([mean_over(same) for same in by_benchmark.values()])
        for key, by_benchmark in sorted(scored.items())
        if by_benchmark.keys() == benchmarks
    }


def overall_metrics(cells: Sequence[CellSummary]) -> dict[str, float]:
    """Metrics of the whole grid: totals, and score/<method>/<budget>: r0.50, 512tokens or 8MiB."""
    named = labels(cell.identity["method"] for cell in cells)
    means = {f"score/{named[method]}/{budget_label(budget)}": s.mean for (method, budget), s in overall(cells).items()}
    totals = {"cells": len(cells), "samples": sum(c.samples for c in cells), "failed": sum(c.failed for c in cells)}
    return {name: float(value) for name, value in totals.items()} | means


def score_note(title: str, cells: Sequence[CellSummary]) -> str:
    """Markdown: methods down, budgets across, mean score over benchmarks with the half-width of its 95% interval."""
    means = overall(cells)
    budgets = sorted({budget for _, budget in means})
    lines = [
        f"## {title}",
        f"{len(cells)} cells, {sum(c.samples for c in cells)} samples, {sum(c.failed for c in cells)} failed. "
        f"Mean score over {len({c.identity['benchmark'] for c in cells})} benchmarks, ± half of the 95% interval:",
        "",
        "| method | " + " | ".join(budget.phrase for budget in budgets) + " |",
        "| --- |" + " --- |" * len(budgets),
    ]
    for method in dict.fromkeys(method for method, _ in means):
        scores = [means.get((method, budget)) for budget in budgets]
        texts = [f"{s.mean:.3f} ± {s.half_width:.3f}" if s else "" for s in scores]
        lines.append(f"| {method.replace('|', '/')} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _summarise_cell(cell_id: str, rows: pa.Table) -> CellSummary:
    finished = rows.filter(pc.equal(rows["status"], OK))
    # Repeats of a sample are not independent: the sample is what the interval resamples.
    by_sample = finished.group_by("sample_id").aggregate([("score", "mean")])
    scores = pc.drop_null(by_sample["score_mean"]).to_numpy()
    means = {name: pc.mean(finished[name]).as_py() for name in MEASURES}
    return CellSummary(
        cell_id=cell_id,
        identity={name: rows[name][0].as_py() for name in IDENTITY},
        git_commit=",".join(sorted(set(filter(None, rows["git_commit"].to_pylist())))),
        samples=finished.num_rows,
        failed=rows.num_rows - finished.num_rows,
        score=mean_ci(np.sort(scores)) if len(scores) else None,
        measures={name: mean for name, mean in means.items() if mean is not None and math.isfinite(mean)},
    )
