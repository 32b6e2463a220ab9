"""Confidence intervals that stay honest at small sample counts. numpy only, deterministic for a given seed.

Scores lie in [0, 1]. What is resampled is the cluster: all samples that ask about one text stand or fall together, so
five texts with ten questions each are five units. Every sample still weighs the same in the mean.

- Mean of 0/1 scores: Wilson's score interval (Wilson, JASA 1927). A bootstrap of ten correct answers has width zero.
- Mean of graded scores: percentile bootstrap over samples, with the tails widened for small n (the expanded
  percentile interval of Hesterberg, The American Statistician 2015); the plain one covers 90% instead of 95% at n = 10.
- Values that do not vary at all: the share w = z^2 / (n + z^2) of samples that behave differently is still compatible
  with seeing none in n (Wilson's bound for 0 of n), and those may lie anywhere in the range. At 0 or 1 this is Wilson.
- Mean over strata (benchmarks): square-and-add of the strata's own intervals (MOVER; Zou and Donner, Statistics in
  Medicine 2008). It agrees with the stratified bootstrap where that is sound, and keeps the care taken above. Strata
  that share clusters are not independent: their limits are added without squares, which holds however they depend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from indexmem.results.units import Design, Units, vector

CONFIDENCE = 0.95  # of all intervals
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence limits, from `n` independent units: samples, or clusters of them."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        """'71.2 (66 to 76)': mean and limits, in points of 100."""
        return f"{f'{100 * self.mean:.1f}'.removesuffix('.0')} ({self.limits})"

    @property
    def limits(self) -> str:
        """'66 to 76', in points of 100."""
        return f"{100 * self.low:.0f} to {100 * self.high:.0f}"


def mean_ci(scores: ArrayLike, *, clusters: ArrayLike | None = None, seed: int = 0, resamples: int = 2000) -> Interval:
    """Mean of `scores` ([n], each in [0, 1]) with its 95% interval: Wilson, or bootstrap for graded scores.

    Scores with one label in `clusters` ([n]) depend on each other.
    """
    units = Units.of(vector(scores), clusters)
    assert ((units.means >= 0.0) & (units.means <= 1.0)).all(), "scores lie in [0, 1]"
    if np.isin(units.means, (0.0, 1.0)).all():
        return _wilson(units)
    return bootstrap_ci(units, floor=0.0, seed=seed, resamples=resamples)


def macro_ci(scores: ArrayLike, design: Design) -> Interval:
    """Unweighted mean over strata (benchmarks) of the means of `scores` [n]."""
    values = vector(scores)
    parts = [mean_ci(values[mask], clusters=design.clusters[mask]) for mask in design.masks]
    return mean_over(parts, shared=design.shared)


def mean_over(strata: Sequence[Interval], *, shared: bool = False) -> Interval:
    """Unweighted mean of means (a macro average over benchmarks); `n` is the total of units.

    `shared`: the same clusters come in several strata, so that their errors may all have one sign.
    """
    assert strata, "a mean over no strata"
    count, power = len(strata), 1 if shared else 2
    mean = sum(s.mean for s in strata) / count
    below = sum((s.mean - s.low) ** power for s in strata) ** (1 / power) / count
    above = sum((s.high - s.mean) ** power for s in strata) ** (1 / power) / count
    return Interval(mean, mean - below, mean + above, sum(s.n for s in strata))


def bootstrap_ci(units: Units, *, floor: float, seed: int, resamples: int) -> Interval:
    """Percentile bootstrap of the mean of values in [floor, 1]; units without spread get the bound for unseen ones."""
    n, mean = units.means.size, units.mean
    if (units.means == units.means[0]).all():
        unseen = Z**2 / (units.effective + Z**2)  # the largest share of a kind of which so many units may show none
        return Interval(mean, mean - unseen * (mean - floor), mean + unseen * (1 - mean), n)
    drawn = np.random.default_rng(seed).integers(0, n, size=(resamples, n), dtype=np.int32)
    if np.ptp(units.sizes) == 0:
        means = units.means[drawn].mean(axis=1)
    else:
        means = (units.means * units.sizes)[drawn].sum(axis=1) / units.sizes[drawn].sum(axis=1)
    tail = _expanded_tail(units.effective)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, min(mean, float(low)), max(mean, float(high)), n)


def _wilson(units: Units) -> Interval:
    n, p, z2 = units.effective, units.mean, Z**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (p * (1 - p) / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    # Rounding must not push a limit past the mean at p = 0 or p = 1.
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), units.means.size)


def _expanded_tail(n: float) -> float:
    """Bootstrap tail that stands for 2.5%: t for z, n - 1 for n (t by A&S 26.7.5, two terms)."""
    dof = n - 1
    t = Z + (Z**3 + Z) / (4 * dof) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * dof**2)
    return NormalDist().cdf(-t * (n / dof) ** 0.5)
