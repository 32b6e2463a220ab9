"""One method against several at once, with one error rate for all of them: the max-T test by sign flips.

If methods do not differ, every unit's scores could as well have been swapped between any two of them. So the signs of
whole units are flipped, the same for all methods, and the largest studentised difference that chance makes is compared
with those that were seen (Westfall and Young 1993; step-down: Romano and Wolf, JASA 2005). What methods have in common
costs nothing, unlike with Holm's adjustment, and a p-value is not multiplied by the number of rivals.

The best method of a table was picked because it is the best there, so it leads everybody by luck alone. Its rivals are
therefore judged by the largest difference between *any* two methods.
"""

from __future__ import annotations

import numpy as np

from indexmem.results.units import Floats

ROUNDING = 1e-9


def max_t(contributions_UM: Floats, reference: int, *, picked: bool, seed: int = 0, resamples: int = 2000) -> Floats:
    """p-values [M], adjusted for all M methods, of no difference between method `reference` and each; its own is 1.

    contributions_UM: what each of U independent units adds to each method's mean. `picked`: the reference is the best
    of these very means, and was not named beforehand.
    """
    methods = contributions_UM.shape[1]
    centred_UM = contributions_UM - contributions_UM.mean(axis=1, keepdims=True)
    centred_UM = centred_UM[np.abs(centred_UM).max(axis=1) > ROUNDING]  # where all agree, a flip changes nothing
    total_M, flipped_RM = centred_UM.sum(axis=0), _flipped(centred_UM, seed, resamples)
    seen_M = np.array([_studentised(centred_UM, total_M, reference, [m])[0] for m in range(methods)])
    p_M = np.ones(methods)
    members, largest_R = [reference], np.zeros(resamples)
    # From the smallest difference up: each is judged among those that are not larger.
    ascending = [int(m) for m in np.argsort(seen_M, kind="stable") if m != reference]
    for method in ascending:
        among = members if picked else [reference]
        largest_R = np.maximum(largest_R, _studentised(centred_UM, flipped_RM, method, among).max(axis=-1))
        members.append(method)
        p_M[method] = (np.count_nonzero(largest_R >= seen_M[method] - ROUNDING) + 1) / (resamples + 1)
    for smaller, larger in zip(ascending[-2::-1], ascending[:0:-1]):  # whoever is closer is no surer
        p_M[smaller] = max(p_M[smaller], p_M[larger])
    return p_M


def _flipped(centred_UM: Floats, seed: int, resamples: int) -> Floats:
    """[R, M]: sums over units whose signs are fair coins, the same coins for all methods."""
    rng, units = np.random.default_rng(seed), len(centred_UM)
    coins = (rng.integers(0, 2, size=units, dtype=np.int8) * 2.0 - 1.0 for _ in range(resamples))
    return np.array([coin_U @ centred_UM for coin_U in coins]).reshape(resamples, centred_UM.shape[1])


def _studentised(centred_UM: Floats, sums: Floats, method: int, others: list[int]) -> Floats:
    """[..., others]: |difference of sums [..., M]| by its spread under flips; 0 between methods that are equal."""
    spread = np.sqrt(((centred_UM[:, others] - centred_UM[:, [method]]) ** 2).sum(axis=0))
    gaps = np.abs(sums[..., others] - sums[..., [method]])
    return np.divide(gaps, spread, out=np.zeros_like(gaps), where=spread > ROUNDING)
