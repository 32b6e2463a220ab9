"""What statistics count: scores, the strata (benchmarks) that they belong to, and the clusters that depend together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Labels = NDArray[Any]


@dataclass(frozen=True)
class Units:
    """Independent units: `means` [n] of their values, and how many values each has, `sizes` [n]."""

    means: Floats
    sizes: Floats

    @classmethod
    def of(cls, values: Floats, clusters: ArrayLike | None = None) -> Units:
        """The clusters that `clusters` ([n] labels) names, in the order of the labels; by default each value alone."""
        if clusters is None:
            return cls(values, np.ones_like(values))
        _, unit_of = np.unique(np.asarray(clusters), return_inverse=True)
        assert unit_of.shape == values.shape, f"{unit_of.size} labels for {values.size} values"
        sizes = np.bincount(unit_of).astype(np.float64)
        return cls(np.bincount(unit_of, weights=values) / sizes, sizes)

    @property
    def mean(self) -> float:
        """Of all values, each weighing the same."""
        return float(self.means @ self.sizes / self.sizes.sum())

    @property
    def effective(self) -> float:
        """Units of equal size that say as much (Kish's effective sample size)."""
        return float(self.sizes.sum() ** 2 / (self.sizes**2).sum())


@dataclass(frozen=True)
class Design:
    """Where values come from: `strata` and `clusters`, labels [n] each. A cluster may have values in several strata."""

    strata: Labels
    clusters: Labels

    @classmethod
    def of(cls, count: int, strata: ArrayLike | None = None, clusters: ArrayLike | None = None) -> Design:
        """By default `count` values in one stratum, each a cluster of its own."""
        found = cls(
            np.zeros(count) if strata is None else np.asarray(strata),
            np.arange(count) if clusters is None else np.asarray(clusters),
        )
        assert found.strata.shape == found.clusters.shape == (count,), f"not {count} labels"
        return found

    @property
    def masks(self) -> list[NDArray[np.bool_]]:
        """For each stratum, in the order of labels, which values it has."""
        return [self.strata == label for label in np.unique(self.strata)]

    @property
    def shared(self) -> bool:
        """Whether some cluster has values in several strata, so that these are not independent."""
        names = [set(self.clusters[mask].tolist()) for mask in self.masks]
        return sum(map(len, names)) > len(set().union(*names))

    def units(self, values: Floats) -> list[Units]:
        """The units of each stratum."""
        return [Units.of(values[mask], self.clusters[mask]) for mask in self.masks]

    def contributions(self, values_NM: Floats) -> Floats:
        """[clusters, M]: what each cluster adds to each column's mean over the means of strata."""
        weights_N = np.zeros(self.strata.size)
        for mask in self.masks:
            weights_N[mask] = 1.0 / (mask.sum() * len(self.masks))
        _, unit_of = np.unique(self.clusters, return_inverse=True)
        sums = np.zeros((unit_of.max() + 1, values_NM.shape[1]))
        np.add.at(sums, unit_of, weights_N[:, None] * values_NM)
        return sums


def vector(values: ArrayLike) -> Floats:
    """`values` as [n] finite numbers, n > 0."""
    found = np.asarray(values, dtype=np.float64)
    assert found.ndim == 1, f"expected one dimension, got {found.shape}"
    assert found.size > 0, "a mean of no samples"
    assert np.isfinite(found).all(), "a failed sample has no score and must be left out"
    return found
