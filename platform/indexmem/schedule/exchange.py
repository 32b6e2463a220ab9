"""Was tonight lower than earlier nights by chance? An exact test on the same samples.

If nothing changed, the scores that a sample had on the 1 + k nights could have come in any order: tonight's is each of
them with probability 1/(1 + k), independently of other samples. The sum of tonight's scores then has a known
distribution, a convolution over samples, and its tail at the sum that was seen is the p-value. With one earlier night
this is the exact sign-flip test; for 0/1 scores it is a Poisson binomial tail. Samples that scored the same every night
say nothing and drop out, so a deterministic night costs and shows nothing.

Nothing is drawn at random: a table of a thousand cells needs p-values far smaller than resampling can give.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRID = 100  # scores are rounded to hundredths, on all nights alike: that leaves the test exact and the sums few


def lower_tail(scores_SN: Floats) -> float:
    """P(sum of tonight's scores <= the one seen) when nights are exchangeable within each sample.

    `scores_SN` holds scores in [0, 1]; column 0 is tonight, which every sample has; NaN where another night has none.
    """
    assert scores_SN.ndim == 2 and np.isfinite(scores_SN[:, 0]).all(), f"not scores by night: {scores_SN.shape}"
    missing_SN = np.isnan(scores_SN)
    ticks_SN = np.where(missing_SN, 0, np.rint(scores_SN * GRID)).astype(np.int64)
    lowest_S = np.where(missing_SN, GRID, ticks_SN).min(axis=1)
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


def upper_tail(scores_SN: Floats) -> float:
    """The same for sums at least as large as the one seen."""
    return lower_tail(1.0 - scores_SN)
