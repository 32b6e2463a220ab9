"""Two methods on the same samples: how far apart they are, and how sure that is.

The interval is a paired bootstrap, stratified by benchmark; the p-value is a sign-flip randomisation, because a
bootstrap p-value of three wins out of three is 0 and the exact one is 1/4. Samples of one cluster (questions on one
text) are drawn and flipped together: taken one by one, they would make any difference look surer than it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from indexmem.results.intervals import Interval, bootstrap_ci, mean_over
from indexmem.results.units import Design, Floats, vector


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
    level: float = 0.95,
    resamples: int = 2000,
) -> Difference:
    """Mean of a - b, both [n] and aligned; with `strata` ([n] labels), the mean of the strata's means.

    Pairs with one label in `clusters` ([n]) depend on each other, within a stratum and across strata.
    """
    difference = vector(a) - vector(b)
    assert np.abs(difference).max() <= 1.0, "scores lie in [0, 1]"
    design = Design.of(difference.size, strata, clusters)
    parts = [
        bootstrap_ci(units, floor=-1.0, seed=seed, level=level, resamples=resamples)
        for units in design.units(difference)
    ]
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
