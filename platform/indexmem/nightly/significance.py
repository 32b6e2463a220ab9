"""Could chance alone make tonight this low? Two tests; a loss counts only when neither explains it.

Exchange: if nothing changed, the scores that a sample had on the 1 + k nights could have come in any order: tonight's
is each of them with probability 1/(1 + k), independently of other samples. Samples of one group keep one order. The
sum of tonight's scores then has a known distribution, a convolution over samples or groups, and its tail at the sum
that was seen is the p-value. With one earlier night this is the exact sign-flip test; for 0/1 scores it is a Poisson
binomial tail. Samples that scored the same every night drop out, so a deterministic night costs and shows nothing.
Nothing is drawn at random: a table of a thousand cells needs p-values far smaller than resampling can give.

Wander: a module that is trained anew every night has a level of its own every night, which moves all of its samples
together. The exchange test takes samples as independent and finds that significant, however often it happens. So
tonight's level is also compared with the spread of earlier nights' levels by Student's t. Nights before those that
tonight is compared with tell of this spread, too: with five alone, a loss has to be large before it shows. Nights of a
method that answers alike every night have no spread, and the test costs it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from indexmem.results.units import Floats, Labels

TICKS = 100  # scores are rounded to hundredths, on all nights alike: that leaves the test exact and the sums few
ENOUGH_NIGHTS = 3  # that tell a spread: two that are equal by chance look like what is alike every night
ROUNDING = 1e-12  # a spread below this is that of floats


def lower_tail(scores_SN: Floats, groups_S: Labels | None = None) -> float:
    """P(sum of tonight's scores <= the one seen) when nights are exchangeable within each sample.

    `scores_SN` holds scores in [0, 1]; column 0 is tonight, which every sample has; NaN where another night has none.
    Samples of one label in `groups_S` change places together, on the nights that have all of them.
    """
    assert scores_SN.ndim == 2 and np.isfinite(scores_SN[:, 0]).all(), f"not scores by night: {scores_SN.shape}"
    missing_SN = np.isnan(scores_SN)
    ticks_SN = np.where(missing_SN, 0, np.rint(scores_SN * TICKS)).astype(np.int64)
    if groups_S is not None:
        ticks_SN, missing_SN = _together(ticks_SN, missing_SN, groups_S)
    lowest_S = np.where(missing_SN, np.iinfo(np.int64).max, ticks_SN).min(axis=1)
    ticks_SN = np.where(missing_SN, 0, ticks_SN - lowest_S[:, None])
    varies_S = ticks_SN.any(axis=1)
    if not varies_S.any():
        return 1.0
    ticks_SN, missing_SN = ticks_SN[varies_S], missing_SN[varies_S]
    ticks_SN //= np.gcd.reduce(ticks_SN, axis=None)
    mass = np.zeros(int(ticks_SN.max(axis=1).sum()) + 1)
    mass[0], top = 1.0, 0
    for ticks_N, missing_N in zip(ticks_SN, missing_SN):
        offsets, counts = np.unique(ticks_N[~missing_N], return_counts=True)
        spread = np.zeros_like(mass)
        for offset, weight in zip(offsets, counts / counts.sum()):
            spread[offset : offset + top + 1] += weight * mass[: top + 1]
        mass, top = spread, top + int(offsets[-1])
    return min(1.0, float(mass[: int(ticks_SN[:, 0].sum()) + 1].sum()))


def upper_tail(scores_SN: Floats, groups_S: Labels | None = None) -> float:
    """P(sum of tonight's scores >= the one seen), of scores as in `lower_tail`."""
    return lower_tail(1.0 - scores_SN, groups_S)


def _together(
    ticks_SN: NDArray[np.int64], missing_SN: NDArray[np.bool_], groups_S: Labels
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sums of each group's samples; a night that lacks one of them lacks the group."""
    _, places = np.unique(groups_S, return_inverse=True)
    ticks = np.zeros((places.max() + 1, ticks_SN.shape[1]), np.int64)
    missing = np.zeros(ticks.shape, np.bool_)
    np.add.at(ticks, places, ticks_SN)
    np.logical_or.at(missing, places, missing_SN)
    return ticks, missing


@dataclass(frozen=True)
class Wander:
    """How far tonight is from the mean of the nights before, and how far these are from each other."""

    gap: float
    spread: float  # standard deviation of one night's level; 0 with a single earlier night, from which none can be told
    nights: int  # that tonight is compared with
    known: int  # that tell the spread

    @classmethod
    def of(cls, scores_SN: Floats, reference: int | None = None) -> Wander:
        """Of scores [S, 1 + nights] with tonight in column 0; NaN where an earlier night has no score. Tonight is
        compared with the next `reference` columns, by default with all.
        """
        earlier_SN = scores_SN[:, 1:]
        usual_S = np.nanmean(earlier_SN, axis=1)
        seen_N = np.flatnonzero(~np.isnan(earlier_SN).all(axis=0))
        levels_N = np.nanmean((earlier_SN - usual_S[:, None])[:, seen_N], axis=0)
        spread = float(levels_N.std(ddof=1)) if levels_N.size > 1 else 0.0
        compared_SN = earlier_SN[:, :reference]
        known_S = np.flatnonzero(np.isfinite(compared_SN).any(axis=1))
        gap = float((scores_SN[known_S, 0] - np.nanmean(compared_SN[known_S], axis=1)).mean())
        return cls(gap, spread, int(np.count_nonzero(seen_N < compared_SN.shape[1])), levels_N.size)

    def tail(self, least_spread: float = 0.0) -> float:
        """P(a night this low or lower). `least_spread`: that of what this is a part of, since few samples may agree on
        two nights by chance.
        """
        error = max(self.spread, least_spread) * (1 + 1 / self.nights) ** 0.5
        if error < ROUNDING:
            return float(self.gap >= 0)
        return float(stats.t.cdf(self.gap / error, max(1, self.known - 1)))
