"""How small a lead the samples at hand could have shown, said where no method is ahead."""

from __future__ import annotations

from indexmem.config.budget import Budget
from indexmem.results.stats import minimum_detectable_difference
from indexmem.results.summary import MEAN, Contest, Summary


def detectable_lead(summary: Summary, budget: Budget) -> float | None:
    """The smallest true lead of the best method over its closest rival, in mean score, that is found in 4 of 5 cases.

    Paired by sample, benchmarks as strata, at the level of all pairs of this column's methods; None without a rival.
    """
    contest = summary.contests.get((budget, MEAN))
    if contest is None or not contest.lead:
        return None
    common, methods = contest.common, len(contest.lead) + 1
    design = common.design
    return minimum_detectable_difference(
        common.of((contest.best, budget)),
        common.of((closest_rival(contest), budget)),
        strata=design.strata,
        clusters=design.clusters,
        comparisons=methods * (methods - 1) // 2,
    )


def closest_rival(contest: Contest) -> str:
    """Whom the best method leads by least."""
    return min(contest.lead, key=lambda method: contest.lead[method].mean)
