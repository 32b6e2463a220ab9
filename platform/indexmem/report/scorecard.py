"""What the page's scripts know of every cell: interval, standing, distance to its rival and to the full cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from indexmem.config.budget import PHRASES
from indexmem.report.text import seconds_text
from indexmem.report.verdict import Finding, verdict
from indexmem.results.comparison import Difference
from indexmem.results.costs import Cost
from indexmem.results.intervals import Interval
from indexmem.results.schema import FULL_LABEL
from indexmem.results.summary import MEAN, Contest, Summary

STANDINGS = ("reference", "winner", "leading", "behind", "alone")


def scorecard(model: str, summary: Summary, costs: Sequence[Cost] = ()) -> dict[str, Any]:
    """JSON-ready cells of one model. Names are numbers into the lists beside them; benchmark -1 is the mean.

    A cell: [method, budget, benchmark, [mean, low, high], n, standing, rival, [method - rival, low, high, adjusted p],
    [method - full cache, low, high, p]]; the last three are null where there is nothing to compare with. The rival is
    the best method, and for the best method the one closest to it. `held`: [method, budget, what it holds, in words].
    `verdicts`: benchmark -> [headline, findings], the verdict where the page is filtered to it.
    """
    methods = (FULL_LABEL, *summary.methods)
    budgets = list(dict.fromkeys(str(budget) for _, budget, _ in sorted(summary.cells, key=lambda key: key[1])))
    number = {name: index for index, name in enumerate(methods)}
    benchmark_number = {MEAN: -1} | {name: index for index, name in enumerate(summary.benchmarks)}
    cells = []
    for (method, budget, benchmark), cell in summary.cells.items():
        contest = summary.contests.get((budget, benchmark))
        rival, lead = _rival(contest, method) if contest is not None else (None, None)
        against_full = summary.against_full(method, budget, benchmark) if method != FULL_LABEL else None
        cells.append(
            [
                number[method],
                budgets.index(str(budget)),
                benchmark_number[benchmark],
                _interval(cell),
                cell.n,
                STANDINGS.index(summary.standing(method, budget, benchmark)),
                None if rival is None else number[rival],
                None if lead is None else _difference(lead),
                None if against_full is None else _difference(against_full),
            ]
        )
    names = {"model": model, "methods": methods, "budgets": budgets, "benchmarks": summary.benchmarks}
    held = [
        [
            number[c.method],
            budgets.index(str(c.budget)),
            f"{100 * c.cache_share:.1f}% · {seconds_text(c.score_seconds)}",
        ]
        for c in costs
        if c.method in number and str(c.budget) in budgets
    ]
    said = {name: verdict(summary, costs, name) for name in summary.benchmarks if len(summary.benchmarks) > 1}
    verdicts = {name: [found.headline, list(map(_told, found.findings))] for name, found in said.items()}
    return names | {"standings": STANDINGS, "cells": cells, "held": held, "verdicts": verdicts}


def _told(finding: Finding) -> dict[str, Any]:
    told = {"budget": str(finding.budget), "kind": PHRASES[finding.budget.kind], "best": finding.best}
    return told | {"decided": finding.decided, "title": finding.title, "text": f"{finding.text} {finding.cost}"}


def _rival(contest: Contest, method: str) -> tuple[str | None, Difference | None]:
    """Whom a method is compared with, and (method - rival)."""
    if method == contest.best:
        rival = contest.closest_rival
        return rival, contest.lead[rival] if rival is not None else None
    lead = contest.lead.get(method)
    return (None, None) if lead is None else (contest.best, lead.mirrored)


def _interval(found: Interval) -> list[float]:
    return [round(value, 4) for value in (found.mean, found.low, found.high)]


def _difference(found: Difference) -> list[float]:
    return [*_interval(found), round(found.p_value, 4)]
