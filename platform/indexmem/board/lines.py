"""The lines of one model under one protocol: score and interval as `results` computes them, costs, origin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.config.schema import MEAN
from indexmem.results.intervals import Interval, mean_ci
from indexmem.results.parts import deduplicate
from indexmem.results.schema import OK
from indexmem.results.summary import Standing, Summary, summarise

COSTS = ("evicted", "held_bytes", "full_bytes", "prefill_ms", "score_ms", "decode_ms")
ORIGIN = ("who", "commit", "versions", "device", "host", "prompts", "build")
Cell = tuple[str, str, str]  # method, budget, benchmark


@dataclass(frozen=True)
class Line:
    """A cell, or a method's mean over all benchmarks. `costs` are means over samples, None where nobody recorded them.

    `standing` is '' where the line takes part in no ranking, and `note` says why.
    """

    model: str
    method: str
    budget: Budget
    benchmark: str
    score: float
    interval: Interval | None
    samples: int | None
    standing: Standing | str
    note: str
    costs: Mapping[str, float | None]
    origin: Mapping[str, tuple[str, ...]]
    date: str


def lines_of(rows: pa.Table, model: str, *, ranked: bool) -> tuple[list[Line], tuple[str, ...]]:
    """The lines of rows whose `method` and `benchmark` are unique names, best first in each budget, and caveats."""
    told = rows.filter(pc.is_valid(rows["sample"]))
    means = rows.filter(pc.is_null(rows["sample"]))
    sampled = _as_results(told) if told.num_rows else None
    summary = summarise(sampled) if sampled is not None else None
    found = [*_of_samples(sampled, summary, model, ranked)] if sampled is not None and summary is not None else []
    found += _of_means(means, model)
    caveats = summary.caveats if summary is not None and ranked else ()
    return sorted(found, key=_order), caveats


def _order(line: Line) -> tuple[Any, ...]:
    return line.benchmark != MEAN, line.benchmark, line.budget, -line.score, line.method


def _as_results(rows: pa.Table) -> pa.Table:
    """One row for each sample of a cell, the newest, with the columns that `summarise` reads."""
    cell = pc.binary_join_element_wise(rows["method"], rows["budget"], rows["benchmark"], "\n")
    sample = pc.binary_join_element_wise(rows["benchmark"], rows["sample"], "/")
    count = rows.num_rows
    columns = {
        "cell_id": cell,
        "sample_id": sample,
        "repeat": pc.fill_null(rows["repeat"], 0),
        "status": pa.repeat(OK, count),
        "created_at": pc.rank(pc.fill_null(rows["date"], ""), "ascending", tiebreaker="dense").cast(pa.int64()),
        "measured_ratio": pa.nulls(count, pa.float64()),  # no warning of ours about contexts that fit a budget
        "question_aware": pc.equal(rows["question"], "before"),
        "context_tokens": pa.nulls(count, pa.int32()),
    }
    same = ("method", "budget", "benchmark", "score", "group", "date", *COSTS, *ORIGIN)
    return deduplicate(pa.table(columns | {name: rows[name] for name in same}))


def _of_samples(rows: pa.Table, summary: Summary, model: str, ranked: bool) -> Iterator[Line]:
    known = _known(rows)
    for (method, budget, benchmark), cell in summary.scores.items():
        interval = summary.cells.get((method, budget, benchmark))
        own = interval or mean_ci(cell.values, clusters=cell.groups)
        standing, note = "", "its protocol is not recorded"
        if ranked:
            standing = summary.standing(method, budget, benchmark) if interval else ""
            note = "" if interval else "lacks samples that others answered"
        costs, origin, date = known[method, str(budget), benchmark]
        yield Line(
            *(model, method, budget, benchmark, own.mean, own, cell.values.size, standing, note, costs, origin, date)
        )
    if len(summary.benchmarks) > 1:
        yield from _over_benchmarks(summary, known, model, ranked)


def _over_benchmarks(summary: Summary, known: Mapping[Cell, Any], model: str, ranked: bool) -> Iterator[Line]:
    for (method, budget, benchmark), interval in summary.cells.items():
        if benchmark != MEAN:
            continue
        parts = [known[key] for name in summary.benchmarks if (key := (method, str(budget), name)) in known]
        costs = {name: _mean([part[0][name] for part in parts]) for name in COSTS}
        origin = {name: tuple(sorted({text for part in parts for text in part[1][name]})) for name in ORIGIN}
        samples = sum(summary.scores[method, budget, name].values.size for name in summary.benchmarks)
        standing = summary.standing(method, budget, MEAN) if ranked else ""
        note = "" if ranked else "its protocol is not recorded"
        date = max(part[2] for part in parts)
        yield Line(
            *(model, method, budget, MEAN, interval.mean, interval, samples, standing, note, costs, origin, date)
        )


def _of_means(rows: pa.Table, model: str) -> Iterator[Line]:
    """A row that is a mean already says nothing of its samples: no interval, no ranking."""
    cells: dict[Cell, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows.to_pylist():
        cells[row["method"], row["budget"], row["benchmark"]].append(row)
    for (method, budget, benchmark), found in cells.items():
        newest = max(found, key=lambda row: row["date"] or "")
        origin = {name: (newest[name],) if newest[name] else () for name in ORIGIN}
        costs = {name: newest[name] for name in COSTS}
        note = "no scores of single samples, so no interval"
        cell = (model, method, Budget.parse(budget), benchmark, newest["score"], None, newest["samples"])
        yield Line(*cell, "", note, costs, origin, newest["date"] or "")


def _known(rows: pa.Table) -> dict[Cell, tuple[dict[str, float | None], dict[str, tuple[str, ...]], str]]:
    """Costs, origin and date of each cell."""
    asked = [(name, "mean") for name in COSTS] + [(name, "distinct") for name in ORIGIN] + [("date", "max")]
    found = rows.group_by(["method", "budget", "benchmark"]).aggregate(asked).to_pylist()
    return {
        (row["method"], row["budget"], row["benchmark"]): (
            {name: row[f"{name}_mean"] for name in COSTS},
            {name: tuple(sorted(filter(None, row[f"{name}_distinct"]))) for name in ORIGIN},
            row["date_max"] or "",
        )
        for row in found
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
