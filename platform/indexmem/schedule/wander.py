"""Do nights differ by more than their samples' luck? What retraining alone moves is no regression.

A module that is trained anew every night has a level of its own every night, which moves all of its samples together.
A test that takes samples as independent finds that significant, however often it happens. So tonight's level is also
compared with the spread of earlier nights' levels by Student's t. More nights than tonight is compared with tell this
spread: with five alone, a loss has to be large before it shows. Nights of a method that answers alike every night have
no spread, and the test costs it nothing.
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
