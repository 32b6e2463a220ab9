"""The report's numbers as CSV, for everything that draws or computes further."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from indexmem.report.costs import Cost
from indexmem.report.view import View
from indexmem.results.schema import FULL_CACHE
from indexmem.results.summary import MEAN, Summary, by_model, summarise

SCORES = ("model", "method", "budget", "ratio", "benchmark", "mean", "low", "high", "n", "standing")
ABLATIONS = ("model", "variant", "baseline", "budget", "difference", "low", "high", "n", "p_adjusted")


def comparison_csv(rows: pa.Table) -> str:
    """`scores_csv` of rows, a model at a time."""
    return scores_csv({model: summarise(mine) for model, mine in by_model(rows).items()})


def scores_csv(summaries: Mapping[str, Summary]) -> str:
    """One line per (model, method, budget, benchmark or 'mean'): mean, low, high in [0, 1], n, standing in its column.

    `ratio` is the budget as a number, empty where it is not a share; `n` counts independent samples, or groups of
    them. A method that lacks too many samples to be ranked has the standing 'unranked' and no numbers.
    """
    return _csv(SCORES, (line for model, summary in summaries.items() for line in _scores(model, summary)))


def costs_csv(views: Sequence[View]) -> str:
    """One line per (model, method, budget): the means that `Cost` describes, in tokens, bytes and seconds."""
    names = [field.name for field in fields(Cost)]
    lines = ([view.model, *(getattr(cost, name) for name in names)] for view in views for cost in view.costs)
    return _csv(("model", *names), lines)


def ablations_csv(views: Sequence[View]) -> str:
    """One line per (model, variant, budget): variant - baseline in [-1, 1] with its interval and adjusted p."""
    lines = (
        [view.model, variant, ablation.baseline, ablation.budget, *_numbers(d.mean, d.low, d.high), d.n, d.p_value]
        for view in views
        for ablation in view.ablations
        for variant, d in ablation.variants.items()
    )
    return _csv(ABLATIONS, lines)


def _scores(model: str, summary: Summary) -> Iterable[list[Any]]:
    order = {name: place for place, name in enumerate((FULL_CACHE, *summary.methods))}
    columns = {name: place for place, name in enumerate((MEAN, *summary.benchmarks))}
    for method, budget, benchmark in sorted(summary.cells, key=lambda k: (order[k[0]], k[1], columns[k[2]])):
        cell = summary.cells[method, budget, benchmark]
        contest = summary.contests.get((budget, benchmark))
        ratio = "" if budget.ratio is None else f"{budget.ratio:g}"
        standing = "reference" if method == FULL_CACHE else contest.standing(method) if contest else ""
        limits = _numbers(cell.mean, cell.low, cell.high)
        yield [model, method, str(budget), ratio, benchmark, *limits, cell.n, standing]
    for budget, benchmark in sorted(summary.contests, key=lambda place: (place[0], columns[place[1]])):
        ratio = "" if budget.ratio is None else f"{budget.ratio:g}"
        for method in summary.contests[budget, benchmark].lacking:
            yield [model, method, str(budget), ratio, benchmark, "", "", "", "", "unranked"]


def _numbers(*values: float) -> list[str]:
    return [f"{value:.6f}" for value in values]


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return buffer.getvalue()
