"""Do nights differ by more than their samples' luck? What retraining alone moves is no regression.

A module that is trained anew every night has a level of its own every night, which moves all of its samples together.
A test that takes samples as independent finds that significant, however often it happens. So tonight's level is also
compared with the spread of earlier nights' levels: Student's t of one new value against k known ones. Nights of a
method that answers alike every night have no spread, and the test costs it nothing.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from indexmem.schedule.exchange import Floats


def spread_tail(scores_SN: Floats) -> float:
    """P(a night this low or lower) by the spread of the nights before; column 0 of `scores_SN` is tonight.

    0 with a single earlier night, whose spread nobody knows.
    """
    earlier_SN = scores_SN[:, 1:]
    usual_S = np.nanmean(earlier_SN, axis=1)
    gap = float((scores_SN[:, 0] - usual_S).mean())
    seen_N = ~np.isnan(earlier_SN).all(axis=0)
    levels_N = np.nanmean((earlier_SN - usual_S[:, None])[:, seen_N], axis=0)
    nights = levels_N.size
    if nights < 2:
        return 0.0
    spread = float(levels_N.std(ddof=1)) * (1 + 1 / nights) ** 0.5
    if spread < 1e-12:
        return float(gap >= 0)
    return float(stats.t.cdf(gap / spread, nights - 1))
