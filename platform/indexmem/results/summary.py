"""Rows -> what the report and MLflow say of a grid: an interval per cell, and who is ahead by more than noise.

Only samples that succeeded count, repeats are averaged per sample, and methods are compared on the samples that both
answered. A mean over benchmarks exists only for a method that has every benchmark, since others are no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from indexmem.config.budget import KINDS, NOTHING_EVICTED, Budget, Kind
from indexmem.errors import UserError
from indexmem.results.schema import OK
from indexmem.results.stats import Difference, Floats, Interval, holm, mean_ci, mean_over, paired_difference

FULL = "full"
MEAN = "mean"
ALPHA = 0.05

Column = tuple[str, Budget]  # a method at a budget
Key = tuple[str, Budget, str]  # on a benchmark, or MEAN
Standing = Literal["winner", "leading", "behind", "alone"]


@dataclass(frozen=True)
class Scores:
    """One cell's scores: samples [n] as sorted integer ids, values [n] in [0, 1]."""

    samples: np.ndarray
    values: Floats


@dataclass(frozen=True)
class Contest:
    """The best method of one column, and how far ahead it is of each rival (p-values Holm-adjusted in the column)."""

    best: str
    lead: Mapping[str, Difference]

    @property
    def leading(self) -> tuple[str, ...]:
        """The best method, then the rivals that are within noise of it."""
        return (self.best, *(rival for rival, lead in self.lead.items() if lead.p_value >= ALPHA))

    def standing(self, method: str) -> Standing:
        """'winner' is given to nobody unless the best method beats every rival by more than noise."""
        if not self.lead:
            return "alone"
        if method not in self.leading:
            return "behind"
        return "winner" if len(self.leading) == 1 else "leading"


@dataclass(frozen=True)
class Summary:
    """Everything that is said about a grid's scores."""

    methods: tuple[str, ...]  # compared methods, best first; never FULL
    budgets: tuple[Budget, ...]  # in display order, without the full cache's
    benchmarks: tuple[str, ...]  # with at least one scored sample
    scores: Mapping[Key, Scores]
    cells: Mapping[Key, Interval]  # benchmark may be MEAN
    contests: Mapping[tuple[Budget, str], Contest]  # benchmark may be MEAN
    failed: int
    total: int

    @property
    def by_kind(self) -> dict[Kind, tuple[Budget, ...]]:
        """The budgets of each kind that there are any of: different kinds share no axis."""
        found = {kind: tuple(budget for budget in self.budgets if budget.kind == kind) for kind in KINDS}
        return {kind: budgets for kind, budgets in found.items() if budgets}

    def full(self, benchmark: str) -> Interval | None:
        """The full cache's score, if it was evaluated."""
        return self.cells.get((FULL, NOTHING_EVICTED, benchmark))

    def difference(self, a: Column, b: Column, benchmark: str = MEAN) -> Difference | None:
        """Mean of a - b on the samples that both answered, over all benchmarks or one; None without common samples."""
        return _compare(self.scores, a, b, self.benchmarks if benchmark == MEAN else (benchmark,))

    def against_full(self, method: str, budget: Budget, benchmark: str = MEAN) -> Difference | None:
        """`difference` of a method and the full cache."""
        return self.difference((method, budget), (FULL, NOTHING_EVICTED), benchmark)


def summarise(rows: pa.Table) -> Summary:
    """Summary of one experiment's rows. Raises UserError if rows of different experiments are mixed."""
    _refuse_mixed_cells(rows)
    scores = _scores(rows)
    named = rows.filter(pc.not_equal(rows["method"], FULL))
    benchmarks = tuple(sorted({benchmark for _, _, benchmark in scores}))
    budgets = tuple(sorted(map(Budget.parse, pc.unique(named["budget"]).to_pylist())))
    names = set(named["method"].to_pylist())

    cells = {key: mean_ci(cell.values) for key, cell in scores.items()}
    for method, budget in {(method, budget) for method, budget, _ in scores}:
        parts = [cells[key] for b in benchmarks if (key := (method, budget, b)) in cells]
        if len(parts) == len(benchmarks):
            cells[method, budget, MEAN] = mean_over(parts)

    methods = tuple(sorted(names, key=lambda method: (-_rank(cells, method), method)))
    contests = {}
    for budget, benchmark in product(budgets, (*benchmarks, MEAN)):
        entrants = [m for m in methods if (m, budget, benchmark) in cells]
        if entrants:
            best = max(entrants, key=lambda m: cells[m, budget, benchmark].mean)
            strata = benchmarks if benchmark == MEAN else (benchmark,)
            contests[budget, benchmark] = _contest(scores, best, entrants, budget, strata)
    failed = rows.num_rows - rows.filter(pc.equal(rows["status"], OK)).num_rows
    return Summary(methods, budgets, benchmarks, scores, cells, contests, failed, rows.num_rows)


def by_model(rows: pa.Table) -> dict[str, pa.Table]:
    """model -> its rows, in the order of names: models are never pooled."""
    names = sorted(pc.unique(rows["model"]).to_pylist())
    return {name: rows.filter(pc.equal(rows["model"], name)) for name in names}


def adjusted(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same differences with p-values Holm-adjusted for their number."""
    p_values = holm([difference.p_value for difference in differences.values()])
    return {name: replace(d, p_value=float(p)) for (name, d), p in zip(differences.items(), p_values)}


def macro(values: Mapping[str, ArrayLike]) -> Interval:
    """benchmark -> one score per sample, to the mean over benchmarks with its interval."""
    return mean_over([mean_ci(scores) for scores in values.values()])


def _refuse_mixed_cells(rows: pa.Table) -> None:
    """Two cell ids under one (method, budget, benchmark) are two experiments: their samples must not be pooled."""
    if rows.num_rows == 0:
        raise UserError("There are no result rows to report. Evaluate first: python jobs/eval_grid.py <spec>.")
    ids = rows.group_by(["method", "budget", "benchmark"]).aggregate([("cell_id", "count_distinct")])
    mixed = ids.filter(pc.greater(ids["cell_id_count_distinct"], 1)).to_pylist()
    if mixed:
        first = mixed[0]
        raise UserError(
            f"Rows of different experiments are mixed: '{first['method']}' at {first['budget']} on "
            f"'{first['benchmark']}' has {first['cell_id_count_distinct']} cell ids (another model, checkpoint, length "
            "or seed). Pass the rows of one spec."
        )


def _scores(rows: pa.Table) -> dict[Key, Scores]:
    answered = rows.filter(pc.equal(rows["status"], OK)).select(["method", "budget", "benchmark", "sample_id", "score"])
    per_sample = answered.group_by(["method", "budget", "benchmark", "sample_id"]).aggregate([("score", "mean")])
    _, ids = np.unique(per_sample["sample_id"].to_numpy(), return_inverse=True)
    numbered = per_sample.set_column(3, "sample_id", pa.array(ids.astype(np.int64)))
    grouped = numbered.group_by(["method", "budget", "benchmark"]).aggregate(
        [("sample_id", "list"), ("score_mean", "list")]
    )
    scores = {}
    for cell in grouped.to_pylist():
        samples, values = np.array(cell["sample_id_list"]), np.array(cell["score_mean_list"])
        order = np.argsort(samples)
        scores[cell["method"], Budget.parse(cell["budget"]), cell["benchmark"]] = Scores(samples[order], values[order])
    return scores


def _rank(cells: Mapping[Key, Interval], method: str) -> float:
    """Mean score over the method's complete budgets, for the order of rows; -1 without any."""
    means = [cell.mean for (name, _, benchmark), cell in cells.items() if name == method and benchmark == MEAN]
    return float(np.mean(means)) if means else -1.0


def _contest(
    scores: Mapping[Key, Scores],
    best: str,
    entrants: Sequence[str],
    budget: Budget,
    benchmarks: Sequence[str],
) -> Contest:
    compared = ((m, _compare(scores, (best, budget), (m, budget), benchmarks)) for m in entrants if m != best)
    lead = {method: difference for method, difference in compared if difference is not None}
    return Contest(best, adjusted(lead))


def _compare(
    scores: Mapping[Key, Scores],
    a: Column,
    b: Column,
    benchmarks: Sequence[str],
) -> Difference | None:
    """Paired difference a - b with benchmarks as strata; None unless every benchmark has a common sample."""
    left: list[Floats] = []
    right: list[Floats] = []
    for benchmark in benchmarks:
        one, other = scores.get((*a, benchmark)), scores.get((*b, benchmark))
        if one is None or other is None:
            return None
        _, i, j = np.intersect1d(one.samples, other.samples, assume_unique=True, return_indices=True)
        if i.size == 0:
            return None
        left.append(one.values[i])
        right.append(other.values[j])
    strata = np.repeat(np.arange(len(left)), [part.size for part in left])
    return paired_difference(np.concatenate(left), np.concatenate(right), strata=strata)
