"""Do nights differ by more than their samples' luck? What retraining alone moves is no regression.

A module that is trained anew every night has a level of its own every night, which moves all of its samples together.
A test that takes samples as independent finds that significant, however often it happens. So tonight's level is also
compared with the spread of earlier nights' levels: Student's t of one new value against k known ones. Nights of a
method that answers alike every night have no spread, and the test costs it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from indexmem.schedule.exchange import Floats

ROUNDING = 1e-12


@dataclass(frozen=True)
class Wander:
    """How far tonight is from the mean of the nights before, and how far these are from each other."""

    gap: float
    spread: float  # standard deviation of one night's level; 0 with a single earlier night, whose spread nobody knows
    nights: int

    @classmethod
    def of(cls, scores_SN: Floats) -> Wander:
        """Of scores [S, 1 + nights] with tonight in column 0; NaN where an earlier night has no score."""
        earlier_SN = scores_SN[:, 1:]
        usual_S = np.nanmean(earlier_SN, axis=1)
        seen_N = ~np.isnan(earlier_SN).all(axis=0)
        levels_N = np.nanmean((earlier_SN - usual_S[:, None])[:, seen_N], axis=0)
        spread = float(levels_N.std(ddof=1)) if levels_N.size > 1 else 0.0
        return cls(float((scores_SN[:, 0] - usual_S).mean()), spread, levels_N.size)

    def tail(self, least_spread: float = 0.0) -> float:
        """P(a night this low or lower). `least_spread`: that of what this is a part of, since few samples may agree on
        two nights by chance.
        """
        error = max(self.spread, least_spread) * (1 + 1 / self.nights) ** 0.5
        if error < ROUNDING:
            return float(self.gap >= 0)
        return float(stats.t.cdf(self.gap / error, max(1, self.nights - 1)))
