"""How small a difference a paired comparison can find.

For n paired differences of standard deviation s, a two-sided test at level alpha finds a true difference

    d = (z_{1-alpha/2} + z_power) s / sqrt(n)

with probability `power`; below some 100 samples, whose test is coarser, a little less often. Few samples add a bound
that no spread lowers: a sign-flip test of k samples that all agree has p = 2^{1-k}, so at alpha = 0.05 six samples must
differ, and a mean below 6/n of the largest difference is out of reach.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from indexmem.results.intervals import CONFIDENCE
from indexmem.results.units import Design, Units, vector


def minimum_detectable_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    power: float = 0.8,
    comparisons: int = 1,
) -> float:
    """The smallest true mean of a - b that samples like these would show with probability `power`; see the module.

    Arguments as in `paired_difference`. `comparisons` is how many differences a table tests: alpha is divided by it,
    which asks for a little more than the joint test does. At most 1, the largest difference that scores can have.
    """
    alpha = (1 - CONFIDENCE) / comparisons
    difference = vector(a) - vector(b)
    design = Design.of(difference.size, strata, clusters)
    parts, power_of = design.units(difference), 1 if design.shared else 2
    errors = [_standard_error(units) for units in parts]
    standard_error = sum(error**power_of for error in errors) ** (1 / power_of) / len(errors)
    largest = max(float(np.abs(units.means).max()) for units in parts) or 1.0
    fewest = must_agree(alpha) * largest / sum(units.means.size for units in parts)
    quantiles = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    return min(1.0, max(quantiles * standard_error, fewest))


def must_agree(alpha: float) -> int:
    """Samples that have to differ, all in one direction, before a sign-flip test can reach p < alpha."""
    return math.floor(1 - math.log2(alpha)) + 1


def _standard_error(units: Units) -> float:
    """Of the mean of all values, from the spread of units."""
    n = units.means.size
    if n < 2:
        return 0.0
    weights = units.sizes / units.sizes.sum()
    return float(np.sqrt(n / (n - 1) * ((weights * (units.means - units.mean)) ** 2).sum()))
