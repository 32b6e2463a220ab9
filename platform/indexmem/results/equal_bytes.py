"""Methods at equal bytes, which an equal share of evicted tokens is not: some hold indexer keys or a memory besides.

At each budget, every method is brought to the bytes of the one that holds most there, by straight lines between the
budgets at which it was measured. The lines join the scores of single samples, so what stands between two budgets has
the same intervals and tests as what was measured. The full cache, plus what a method holds besides, ends its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results.costs import UNEQUAL, Cost
from indexmem.results.intervals import Interval, macro_ci
from indexmem.results.pareto import pareto_front
from indexmem.results.samples import Column
from indexmem.results.schema import FULL_LABEL
from indexmem.results.summary import MEAN, Contest, Summary, contest

SAME = 1e-3  # of the bytes; closer budgets are not mixed
Mix = Mapping[Column, float]  # measured columns -> their weights


@dataclass(frozen=True)
class EqualBytes:
    """One budget's methods where all hold `share` of the full cache's bytes."""

    share: float
    contest: Contest
    cells: Mapping[str, Interval]  # of each method, mean over benchmarks
    beyond: tuple[str, ...]  # methods that no two measured budgets bring there


def at_equal_bytes(summary: Summary, costs: Sequence[Cost], budget: Budget) -> EqualBytes | None:
    """None where all ranked methods hold about the same, or fewer than two can be brought to the same."""
    held = {c.method: c.cache_share for c in _ranked(summary, costs) if c.budget == budget}
    if len(held) < 2 or max(held.values()) <= UNEQUAL * min(held.values()):
        return None
    share = max(held.values())
    mixes = {method: mix for method in held if (mix := _mix(summary, costs, method, share))}
    columns = sorted({column for mix in mixes.values() for column in mix})
    common = summary.matched(columns) if len(mixes) > 1 else None
    if common is None:
        return None
    found = {method: mix for method, mix in mixes.items() if set(mix) <= set(common.columns)}
    if len(found) < 2:
        return None
    values_M = [sum(weight * common.of(column) for column, weight in mix.items()) for mix in found.values()]
    mixed = replace(
        common, columns=tuple((method, budget) for method in found), values_NM=np.stack(values_M, axis=1), lacking={}
    )
    cells = {method: macro_ci(mixed.of((method, budget)), mixed.design) for method in found}
    return EqualBytes(share, contest(mixed, summary.methods), cells, tuple(m for m in held if m not in found))


def best_trades(summary: Summary, costs: Sequence[Cost]) -> list[Cost]:
    """Cells that no other one beats in both mean score and bytes, from the fewest bytes on."""
    found = _ranked(summary, costs)
    points = [(cost.cache_share, -summary.cells[cost.method, cost.budget, MEAN].mean) for cost in found]
    return [found[index] for index in pareto_front(points)]


def _ranked(summary: Summary, costs: Iterable[Cost]) -> list[Cost]:
    return [c for c in costs if c.method != FULL_LABEL and (c.method, c.budget) in summary.ranked]


def _mix(summary: Summary, costs: Sequence[Cost], method: str, share: float) -> Mix:
    """What of the method's measured budgets makes `share`; nothing where it lies beyond them."""
    mine = sorted((c for c in _ranked(summary, costs) if c.method == method), key=lambda cost: cost.cache_share)
    curve = [(cost.cache_share, (method, cost.budget)) for cost in mine]
    if (FULL_LABEL, NOTHING_EVICTED) in summary.ranked:
        besides = mine[-1].extra_bytes / mine[-1].full_kv_bytes
        curve.append((1 + besides, (FULL_LABEL, NOTHING_EVICTED)))
    for here, column in curve:
        if abs(here - share) <= SAME * share:
            return {column: 1.0}
    for (below, lower), (above, upper) in pairwise(curve):
        if below < share < above:
            weight = (share - below) / (above - below)
            return {lower: 1 - weight, upper: weight}
    return {}
