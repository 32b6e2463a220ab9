"""Confidence intervals that stay honest at small sample counts. numpy only, deterministic for a given seed.

Scores lie in [0, 1]; the sampling unit is the sample, so repeats of one sample are averaged first (`cluster_means`).

- Mean of 0/1 scores: Wilson's score interval (Wilson, JASA 1927). A bootstrap of ten correct answers has width zero.
- Mean of graded scores: percentile bootstrap over samples, with the tails widened for small n (the expanded
  percentile interval of Hesterberg, The American Statistician 2015); the plain one covers 90% instead of 95% at n = 10.
- Values that do not vary at all: the share w = z^2 / (n + z^2) of samples that behave differently is still compatible
  with seeing none in n (Wilson's bound for 0 of n), and those may lie anywhere in the range. At 0 or 1 this is Wilson.
- Mean over strata (benchmarks): square-and-add of the strata's own intervals (MOVER; Zou and Donner, Statistics in
  Medicine 2008). It agrees with the stratified bootstrap where that is sound, and keeps the care taken above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence limits, from `n` samples."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean_ci(
    scores: ArrayLike, *, clusters: ArrayLike | None = None, seed: int = 0, level: float = 0.95, resamples: int = 2000
) -> Interval:
    """Mean of `scores` ([n], each in [0, 1]) with its confidence interval: Wilson, or bootstrap for graded scores.

    With `clusters` ([n] labels), scores of one label are repeats of one sample and are averaged first.
    """
    values = vector(scores) if clusters is None else cluster_means(scores, clusters)
    assert ((values >= 0.0) & (values <= 1.0)).all(), "scores lie in [0, 1]"
    if np.isin(values, (0.0, 1.0)).all():
        return _wilson(values, level)
    return bootstrap_ci(values, floor=0.0, seed=seed, level=level, resamples=resamples)


def mean_over(strata: Sequence[Interval]) -> Interval:
    """Unweighted mean of independent means (a macro average over benchmarks); `n` is the total of samples."""
    assert strata, "a mean over no strata"
    count = len(strata)
    mean = sum(s.mean for s in strata) / count
    below = sum((s.mean - s.low) ** 2 for s in strata) ** 0.5 / count
    above = sum((s.high - s.mean) ** 2 for s in strata) ** 0.5 / count
    return Interval(mean, mean - below, mean + above, sum(s.n for s in strata))


def cluster_means(values: ArrayLike, clusters: ArrayLike) -> Floats:
    """Mean of the `values` ([n]) of each label in `clusters` ([n]), in the order of the sorted labels."""
    found = vector(values)
    _, places = np.unique(np.asarray(clusters), return_inverse=True)
    assert places.shape == found.shape, f"{places.size} labels for {found.size} values"
    return np.bincount(places, weights=found) / np.bincount(places)


def bootstrap_ci(values: Floats, *, floor: float, seed: int, level: float, resamples: int) -> Interval:
    """Percentile bootstrap of the mean of values in [floor, 1]; values without spread get the bound for unseen ones."""
    n, mean = values.size, float(values.mean())
    if (values == values[0]).all():
        unseen = unseen_share(n, level)
        return Interval(mean, mean - unseen * (mean - floor), mean + unseen * (1 - mean), n)
    drawn = np.random.default_rng(seed).integers(0, n, size=(resamples, n), dtype=np.int32)
    means = values[drawn].mean(axis=1)
    tail = _expanded_tail(n, level)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, min(mean, float(low)), max(mean, float(high)), n)


def unseen_share(n: int, level: float) -> float:
    """The largest share of a kind that is compatible with seeing none of it in `n` samples."""
    return z_of(level) ** 2 / (n + z_of(level) ** 2)


def vector(values: ArrayLike) -> Floats:
    """`values` as [n] finite numbers, n > 0."""
    found = np.asarray(values, dtype=np.float64)
    assert found.ndim == 1, f"expected one dimension, got {found.shape}"
    assert found.size > 0, "a mean of no samples"
    assert np.isfinite(found).all(), "a failed sample has no score and must be left out"
    return found


def z_of(level: float) -> float:
    """The normal quantile of a two-sided interval."""
    return NormalDist().inv_cdf((1 + level) / 2)


def _wilson(values: Floats, level: float) -> Interval:
    n, p, z2 = values.size, float(values.mean()), z_of(level) ** 2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (p * (1 - p) / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    # Rounding must not push a limit past the mean at p = 0 or p = 1.
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), n)


def _expanded_tail(n: int, level: float) -> float:
    """Bootstrap tail that stands for (1 - level)/2: t for z, n - 1 for n (t by A&S 26.7.5, two terms)."""
    z, dof = z_of(level), n - 1
    t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    return NormalDist().cdf(-t * (n / dof) ** 0.5)
