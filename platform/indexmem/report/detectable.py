"""How small a lead the samples at hand could have shown, said where no method is ahead."""

from __future__ import annotations

import numpy as np

from indexmem.config.budget import Budget
from indexmem.results.stats import Floats, minimum_detectable_difference
from indexmem.results.summary import MEAN, Contest, Summary


def detectable_lead(summary: Summary, budget: Budget) -> float | None:
    """The smallest true lead of the best method over its closest rival, in mean score, that is found in 4 of 5 cases.

    Paired by sample, benchmarks as strata, at the level that Holm's first step asks of this column; None without rival.
    """
    contest = summary.contests.get((budget, MEAN))
    if contest is None or not contest.lead:
        return None
    rival = closest_rival(contest)
    pairs = [_paired(summary, (contest.best, rival), budget, name) for name in summary.benchmarks]
    strata = np.repeat(np.arange(len(pairs)), [left.size for left, _ in pairs])
    left, right = (np.concatenate(side) for side in zip(*pairs))
    return minimum_detectable_difference(left, right, strata=strata, comparisons=len(contest.lead))


def closest_rival(contest: Contest) -> str:
    """Whom the best method leads by least."""
    return min(contest.lead, key=lambda method: contest.lead[method].mean)


def _paired(summary: Summary, methods: tuple[str, str], budget: Budget, benchmark: str) -> tuple[Floats, Floats]:
    """Scores of both methods on the samples that both answered."""
    one, other = (summary.scores[method, budget, benchmark] for method in methods)
    _, i, j = np.intersect1d(one.samples, other.samples, assume_unique=True, return_indices=True)
    return one.values[i], other.values[j]
