"""Rows -> what the report and MLflow say of a grid: an interval per cell, and who is ahead by more than noise.

Only samples that succeeded count, and repeats are averaged per sample. Methods of one column are shown and compared on
the samples that all of them answered; who lacks too many has no score there, since its mean would be no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import BUDGET_KINDS, NOTHING_EVICTED, Budget, Kind
from indexmem.config.schema import MEAN
from indexmem.errors import UserError
from indexmem.results.caveats import caveats
from indexmem.results.comparison import Difference, max_t, paired_difference
from indexmem.results.intervals import Interval, macro_ci
from indexmem.results.power import minimum_detectable_difference
from indexmem.results.samples import ANY, CellScores, Column, Key, Matched, answered_by_any, cell_scores, matched
from indexmem.results.schema import FULL_LABEL, OK

ALPHA = 0.05

Standing = Literal["reference", "winner", "leading", "behind", "alone", "unranked"]


@dataclass(frozen=True)
class Contest:
    """The best method of one column, and how far ahead it is of each rival, on the samples that all of them answered.

    p-values are adjusted for all rivals, and for the best having been picked from the same scores.
    """

    best: str
    lead: Mapping[str, Difference]
    common: Matched

    @property
    def lacking(self) -> dict[str, int]:
        """Methods that are not ranked -> samples that others answered and they did not."""
        return {method: count for (method, _), count in self.common.lacking.items()}

    @property
    def leading(self) -> tuple[str, ...]:
        """The best method, then the rivals that are within noise of it."""
        return (self.best, *(rival for rival, lead in self.lead.items() if lead.p_value >= ALPHA or lead.mean <= 0))

    @property
    def closest_rival(self) -> str | None:
        """Whom the best method leads by least."""
        return min(self.lead, key=lambda method: self.lead[method].mean, default=None)

    @property
    def detectable_leads(self) -> list[float]:
        """For each rival the smallest true lead over it that samples like these show in 4 of 5 cases, at the level of
        all pairs of this column's methods.
        """
        scores = {method: self.common.values_NM[:, index] for index, (method, _) in enumerate(self.common.columns)}
        methods, design = len(self.lead) + 1, self.common.design
        return [
            minimum_detectable_difference(
                scores[self.best],
                scores[rival],
                strata=design.strata,
                clusters=design.clusters,
                comparisons=methods * (methods - 1) // 2,
            )
            for rival in self.lead
        ]

    def standing(self, method: str) -> Standing:
        """'winner' is given to nobody unless the best method beats every rival by more than noise."""
        if method in self.lacking:
            return "unranked"
        if not self.lead:
            return "alone"
        if method not in self.leading:
            return "behind"
        return "winner" if len(self.leading) == 1 else "leading"


@dataclass(frozen=True)
class Summary:
    """A grid's scores: intervals, comparisons, and what to know about them."""

    methods: tuple[str, ...]  # compared methods, best first; never FULL_LABEL
    budgets: tuple[Budget, ...]  # in display order, without the full cache's
    benchmarks: tuple[str, ...]  # with at least one scored sample
    scores: Mapping[Key, CellScores]  # of all samples that a cell answered
    cells: Mapping[Key, Interval]  # on its column's common samples; benchmark may be MEAN
    contests: Mapping[tuple[Budget, str], Contest]  # benchmark may be MEAN
    caveats: tuple[str, ...]  # sentences that belong to every form of the comparison
    failed: int
    total: int

    @property
    def by_kind(self) -> dict[Kind, tuple[Budget, ...]]:
        """The budgets of each kind that there are any of: different kinds share no axis."""
        found = {kind: tuple(budget for budget in self.budgets if budget.kind == kind) for kind in BUDGET_KINDS}
        return {kind: budgets for kind, budgets in found.items() if budgets}

    @property
    def ranked(self) -> set[Column]:
        """Columns with a mean over all benchmarks, the full cache's among them."""
        return {(method, budget) for method, budget, benchmark in self.cells if benchmark == MEAN}

    @property
    def listed(self) -> dict[Key, Interval]:
        """`cells` in display order: the full cache, methods from the best on; by budget; the mean, then benchmarks."""
        method = {name: rank for rank, name in enumerate((FULL_LABEL, *self.methods))}
        benchmark = {name: rank for rank, name in enumerate((MEAN, *self.benchmarks))}
        keys = sorted(self.cells, key=lambda key: (method[key[0]], key[1], benchmark[key[2]]))
        return {key: self.cells[key] for key in keys}

    @property
    def detectable_lead(self) -> float | None:
        """The smallest true lead that samples like these show in 4 of 5 comparisons of means over benchmarks: variances
        are pooled over budgets and rivals, since in one column a single odd sample decides. None without rivals.
        """
        found = [lead for (_, name), c in self.contests.items() if name == MEAN for lead in c.detectable_leads]
        return float(np.sqrt(np.mean(np.square(found)))) if found else None

    def standing(self, method: str, budget: Budget, benchmark: str) -> Standing:
        """How a cell stands in its column; the full cache, and what nothing is compared with, is a reference."""
        column = self.contests.get((budget, benchmark))
        return "reference" if method == FULL_LABEL or column is None else column.standing(method)

    def full(self, benchmark: str) -> Interval | None:
        """The full cache's score, if it was evaluated."""
        return self.cells.get((FULL_LABEL, NOTHING_EVICTED, benchmark))

    def matched(self, columns: Sequence[Column], benchmark: str = MEAN) -> Matched | None:
        """Columns on their common samples, over all benchmarks or one; see `results.samples.matched`."""
        return matched(self.scores, columns, self.benchmarks if benchmark == MEAN else (benchmark,))

    def difference(self, a: Column, b: Column, benchmark: str = MEAN) -> Difference | None:
        """Mean of a - b on the samples that both answered, over all benchmarks or one; None where these are too few."""
        common = self.matched((a, b), benchmark)
        return difference(common, a, b) if common and not common.lacking else None

    def against_full(self, method: str, budget: Budget, benchmark: str = MEAN) -> Difference | None:
        """`difference` of a method and the full cache."""
        return self.difference((method, budget), (FULL_LABEL, NOTHING_EVICTED), benchmark)


def summarise(rows: pa.Table) -> Summary:
    """Summary of one experiment's rows. Raises UserError if rows of different experiments are mixed."""
    _refuse_mixed_cells(rows)
    scores = cell_scores(rows)
    named = rows.filter(pc.not_equal(rows["method"], FULL_LABEL))
    benchmarks = tuple(sorted({benchmark for _, _, benchmark in scores}))
    budgets = tuple(sorted(map(Budget.parse, pc.unique(named["budget"]).to_pylist())))
    names = sorted(set(named["method"].to_pylist()))

    compared: dict[tuple[Budget, str], Matched] = {}
    cells: dict[Key, Interval] = {}
    scopes = [(b, (b,)) for b in benchmarks] + [(MEAN, benchmarks)]
    known = scores | answered_by_any(scores)
    reference = (NOTHING_EVICTED,) if FULL_LABEL in pc.unique(rows["method"]).to_pylist() else ()
    for budget, (scope, strata) in product((*reference, *budgets), scopes):
        full = budget == NOTHING_EVICTED  # is compared with nobody, but must have what anybody answered
        common = matched(known, [(name, budget) for name in ((FULL_LABEL, ANY) if full else names)], strata)
        if common is not None:
            compared[budget, scope] = common
            cells |= {
                (*column, scope): macro_ci(common.of(column), common.design)
                for column in common.columns
                if column[0] != ANY
            }

    ranked = tuple(sorted(names, key=lambda method: (*_rank(cells, method), method)))
    contests = {key: contest(common, ranked) for key, common in compared.items() if key[0] != NOTHING_EVICTED}
    failed = rows.num_rows - rows.filter(pc.equal(rows["status"], OK)).num_rows
    sentences = caveats(rows, {budget: common for (budget, scope), common in compared.items() if scope == MEAN})
    return Summary(ranked, budgets, benchmarks, scores, cells, contests, sentences, failed, rows.num_rows)


def by_model(rows: pa.Table) -> dict[str, pa.Table]:
    """model -> its rows, in the order of names: models are never pooled."""
    names = sorted(pc.unique(rows["model"]).to_pylist())
    return {name: rows.filter(pc.equal(rows["model"], name)) for name in names}


def difference(common: Matched, a: Column, b: Column) -> Difference:
    """Mean of a - b, with an unadjusted p-value."""
    design = common.design
    return paired_difference(common.of(a), common.of(b), strata=design.strata, clusters=design.clusters)


def leads(common: Matched, over: Column, *, picked: bool) -> dict[Column, Difference]:
    """How far `over` is ahead of each other column, with p-values for all of them at once (`max_t`)."""
    p_M = max_t(common.design.contributions(common.values_NM), common.columns.index(over), picked=picked)
    return {
        column: replace(difference(common, over, column), p_value=float(p))
        for column, p in zip(common.columns, p_M)
        if column != over
    }


def _refuse_mixed_cells(rows: pa.Table) -> None:
    """Two cell ids under one (method, budget, benchmark) are two experiments: their samples must not be pooled."""
    if rows.num_rows == 0:
        raise UserError("There are no result rows to report. Evaluate first: python jobs/eval_grid.py <spec>.")
    if pc.count_distinct(rows["question_aware"]).as_py() > 1:
        raise UserError(
            "Rows of both protocols are mixed: some caches were compressed with the question in them "
            "(grid.protocol=question_aware), others without it. Pass the rows of one."
        )
    ids = rows.group_by(["method", "budget", "benchmark"]).aggregate([("cell_id", "count_distinct")])
    mixed = ids.filter(pc.greater(ids["cell_id_count_distinct"], 1)).to_pylist()
    if mixed:
        first = mixed[0]
        raise UserError(
            f"Rows of different experiments are mixed: '{first['method']}' at {first['budget']} on "
            f"'{first['benchmark']}' has {first['cell_id_count_distinct']} cell ids (another model, checkpoint, code, "
            "length or seed). Pass the rows of one spec."
        )


def _rank(cells: Mapping[Key, Interval], method: str) -> tuple[int, float]:
    """For the order of methods: who is ranked at most budgets first, then by the mean score over these."""
    means = [cell.mean for (name, _, benchmark), cell in cells.items() if name == method and benchmark == MEAN]
    return -len(means), -float(np.mean(means)) if means else 0.0


def contest(common: Matched, order: Sequence[str]) -> Contest:
    """Who is ahead in one column. Of equal methods the one that comes first in `order` is called the best."""
    means = common.design.contributions(common.values_NM).sum(axis=0)
    score = dict(zip(common.columns, means.round(12).tolist()))
    best = min(common.columns, key=lambda column: (-score[column], order.index(column[0])))
    found = leads(common, best, picked=True)
    lead = {method: found[column] for method in order if (column := (method, best[1])) in found}
    return Contest(best[0], lead, common)
