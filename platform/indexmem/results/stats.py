"""Intervals and tests that stay honest at small sample counts. numpy only, deterministic for a given seed.

Scores lie in [0, 1]; the sampling unit is the sample, so repeats of one sample are averaged before they come here.

- Mean of 0/1 scores: Wilson's score interval (Wilson, JASA 1927). A bootstrap of ten correct answers has width zero.
- Mean of graded scores: percentile bootstrap over samples, with the tails widened for small n (the expanded
  percentile interval of Hesterberg, The American Statistician 2015); the plain one covers 90% instead of 95% at n = 10.
- Values that do not vary at all: the share w = z^2 / (n + z^2) of samples that behave differently is still compatible
  with seeing none in n (Wilson's bound for 0 of n), and those may lie anywhere in the range. At 0 or 1 this is Wilson.
- Mean over strata (benchmarks): square-and-add of the strata's own intervals (MOVER; Zou and Donner, Statistics in
  Medicine 2008). It agrees with the stratified bootstrap where that is sound, and keeps the care taken above.
- Difference of two methods on the same samples: paired bootstrap for the interval, sign-flip randomisation for the
  p-value, because a bootstrap p-value of three wins out of three is 0 and the exact one is 1/4.
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


@dataclass(frozen=True)
class Difference(Interval):
    """Mean of a - b over `n` samples that both answered; `p_value` is two-sided for 'no difference'."""

    p_value: float


def mean_ci(scores: ArrayLike, *, seed: int = 0, level: float = 0.95, resamples: int = 2000) -> Interval:
    """Mean of `scores` ([n], each in [0, 1]) with its confidence interval: Wilson, or bootstrap for graded scores."""
    values = _vector(scores)
    assert ((values >= 0.0) & (values <= 1.0)).all(), "scores lie in [0, 1]"
    if np.isin(values, (0.0, 1.0)).all():
        return _wilson(values, level)
    return _resampled(values, floor=0.0, seed=seed, level=level, resamples=resamples)


def mean_over(strata: Sequence[Interval]) -> Interval:
    """Unweighted mean of independent means (a macro average over benchmarks); `n` is the total of samples."""
    assert strata, "a mean over no strata"
    count = len(strata)
    mean = sum(s.mean for s in strata) / count
    below = sum((s.mean - s.low) ** 2 for s in strata) ** 0.5 / count
    above = sum((s.high - s.mean) ** 2 for s in strata) ** 0.5 / count
    return Interval(mean, mean - below, mean + above, sum(s.n for s in strata))


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    strata: ArrayLike | None = None,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 2000,
) -> Difference:
    """Mean of a - b, both [n] and aligned by sample; with `strata` ([n] labels), the mean of the strata's means."""
    difference = _vector(a) - _vector(b)
    assert np.abs(difference).max() <= 1.0, "scores lie in [0, 1]"
    labels = np.zeros(difference.size) if strata is None else np.asarray(strata)
    groups = [difference[labels == label] for label in np.unique(labels)]
    interval = mean_over([_resampled(g, floor=-1.0, seed=seed, level=level, resamples=resamples) for g in groups])
    weighted = np.concatenate([group / (group.size * len(groups)) for group in groups])
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


def _vector(values: ArrayLike) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    assert vector.ndim == 1, f"expected one dimension, got {vector.shape}"
    assert vector.size > 0, "a mean of no samples"
    assert np.isfinite(vector).all(), "a failed sample has no score and must be left out"
    return vector


def _z(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


def _wilson(values: Floats, level: float) -> Interval:
    n, p, z2 = values.size, float(values.mean()), _z(level) ** 2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (p * (1 - p) / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    # Rounding must not push a limit past the mean at p = 0 or p = 1.
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), n)


def _resampled(values: Floats, *, floor: float, seed: int, level: float, resamples: int) -> Interval:
    """Percentile bootstrap of the mean of values in [floor, 1]; values without spread get the bound for unseen ones."""
    n, mean = values.size, float(values.mean())
    if (values == values[0]).all():
        unseen = _z(level) ** 2 / (n + _z(level) ** 2)
        return Interval(mean, mean - unseen * (mean - floor), mean + unseen * (1 - mean), n)
    drawn = np.random.default_rng(seed).integers(0, n, size=(resamples, n), dtype=np.int32)
    means = values[drawn].mean(axis=1)
    tail = _expanded_tail(n, level)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, min(mean, float(low)), max(mean, float(high)), n)


def _expanded_tail(n: int, level: float) -> float:
    """Bootstrap tail that stands for (1 - level)/2: t for z, n - 1 for n (t by A&S 26.7.5, two terms)."""
    z, dof = _z(level), n - 1
    t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    return NormalDist().cdf(-t * (n / dof) ** 0.5)


def _sign_flip_p(weighted: Floats, *, seed: int, resamples: int) -> float:
    """Two-sided p of sum(weighted) when each sign is a fair coin, with the +1 that keeps Monte Carlo p-values valid."""
    sizes, counts = np.unique(np.abs(weighted[weighted != 0]), return_counts=True)
    if sizes.size == 0:
        return 1.0
    heads = np.random.default_rng(seed).binomial(counts, 0.5, size=(resamples, sizes.size))
    null = np.abs((2 * heads - counts) @ sizes)
    extreme = np.count_nonzero(null >= abs(weighted.sum()) - 1e-12)
    return float((extreme + 1) / (resamples + 1))
