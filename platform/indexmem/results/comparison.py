"""Methods on the same samples: how far apart they are, and how sure that is.

**Two methods.** The interval is a paired bootstrap, stratified by benchmark; the p-value is a sign-flip randomisation,
because a bootstrap p-value of three wins out of three is 0 and the exact one is 1/4. Samples of one cluster (questions
on one text) are drawn and flipped together: taken one by one, they would make any difference look surer than it is.

**One method against several.** One error rate for all of them: the max-T test by sign flips. If methods do not differ,
every unit's scores could as well have been swapped between any two of them. So the signs of whole units are flipped,
for all methods alike, and the largest studentised difference that chance makes is compared with those that were seen
(Westfall and Young 1993; step-down: Romano and Wolf, JASA 2005). What methods have in common costs nothing, unlike with
Holm's adjustment, and a p-value is not multiplied by the number of rivals. The best method of a table was picked
because it is the best there, so it leads everybody by luck alone. Its rivals are therefore judged by the largest
difference between *any* two methods.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from indexmem.results.intervals import Interval, bootstrap_ci, mean_over
from indexmem.results.units import Design, Floats, vector

ROUNDING = 1e-9


@dataclass(frozen=True)
class Difference(Interval):
    """Mean of a - b over `n` independent units that both answered; `p_value` is two-sided for 'no difference'."""

    p_value: float

    @property
    def mirrored(self) -> Difference:
        """The mean of b - a."""
        return Difference(-self.mean, -self.high, -self.low, self.n, self.p_value)


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    resamples: int = 2000,
) -> Difference:
    """Mean of a - b, both [n] and aligned; with `strata` ([n] labels), the mean of the strata's means.

    Pairs with one label in `clusters` ([n]) depend on each other, within a stratum and across strata.
    """
    difference = vector(a) - vector(b)
    assert np.abs(difference).max() <= 1.0, "scores lie in [0, 1]"
    design = Design.of(difference.size, strata, clusters)
    parts = [bootstrap_ci(units, floor=-1.0, seed=seed, resamples=resamples) for units in design.units(difference)]
    interval = mean_over(parts, shared=design.shared)
    weighted = design.contributions(difference[:, None])[:, 0]
    p_value = _sign_flip_p(weighted, seed=seed, resamples=resamples)
    return Difference(interval.mean, interval.low, interval.high, interval.n, p_value)


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down adjustment (Scandinavian Journal of Statistics 1979), in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _sign_flip_p(weighted: Floats, *, seed: int, resamples: int) -> float:
    """Two-sided p of sum(weighted) when each sign is a fair coin, with the +1 that keeps Monte Carlo p-values valid."""
    sizes, counts = np.unique(np.abs(weighted[weighted != 0]), return_counts=True)
    if sizes.size == 0:
        return 1.0
    heads = np.random.default_rng(seed).binomial(counts, 0.5, size=(resamples, sizes.size))
    null = np.abs((2 * heads - counts) @ sizes)
    extreme = np.count_nonzero(null >= abs(weighted.sum()) - 1e-12)
    return float((extreme + 1) / (resamples + 1))


def max_t(contributions_UM: Floats, reference: int, *, picked: bool, seed: int = 0, resamples: int = 2000) -> Floats:
    """p-values [M], adjusted for all M methods, of no difference between method `reference` and each; its own is 1.

    contributions_UM: what each of U independent units adds to each method's mean. `picked`: the reference is the best
    of these very means, and was not named beforehand.
    """
    methods = contributions_UM.shape[1]
    centred_UM = contributions_UM - contributions_UM.mean(axis=1, keepdims=True)
    centred_UM = centred_UM[np.abs(centred_UM).max(axis=1) > ROUNDING]  # where all agree, a flip changes nothing
    total_M, flipped_RM = centred_UM.sum(axis=0), _flipped(centred_UM, seed, resamples)
    seen_M = np.array([_studentised(centred_UM, total_M, reference, [m])[0] for m in range(methods)])
    p_M = np.ones(methods)
    members, largest_R = [reference], np.zeros(resamples)
    # From the smallest difference up: each is judged among those that are not larger.
    ascending = [int(m) for m in np.argsort(seen_M, kind="stable") if m != reference]
    for method in ascending:
        among = members if picked else [reference]
        largest_R = np.maximum(largest_R, _studentised(centred_UM, flipped_RM, method, among).max(axis=-1))
        members.append(method)
        p_M[method] = (np.count_nonzero(largest_R >= seen_M[method] - ROUNDING) + 1) / (resamples + 1)
    for smaller, larger in zip(ascending[-2::-1], ascending[:0:-1]):  # whoever is closer is no surer
        p_M[smaller] = max(p_M[smaller], p_M[larger])
    return p_M


def _flipped(centred_UM: Floats, seed: int, resamples: int) -> Floats:
    """[R, M]: sums over units whose signs are fair coins, the same coins for all methods."""
    rng, units = np.random.default_rng(seed), len(centred_UM)
    coins = (rng.integers(0, 2, size=units, dtype=np.int8) * 2.0 - 1.0 for _ in range(resamples))
    return np.array([coin_U @ centred_UM for coin_U in coins]).reshape(resamples, centred_UM.shape[1])


def _studentised(centred_UM: Floats, sums: Floats, method: int, others: list[int]) -> Floats:
    """[..., others]: |difference of sums [..., M]| by its spread under flips; 0 between methods that are equal."""
    spread = np.sqrt(((centred_UM[:, others] - centred_UM[:, [method]]) ** 2).sum(axis=0))
    gaps = np.abs(sums[..., others] - sums[..., [method]])
    return np.divide(gaps, spread, out=np.zeros_like(gaps), where=spread > ROUNDING)
