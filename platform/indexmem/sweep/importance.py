"""Which axes decide: the share of the variance between trials that each axis explains alone, and how sure that is.

The share is adjusted for what groups explain by chance (adjusted R^2 of one-way analysis of variance); its interval is
a jackknife over trials (Tukey 1958). The p-value is that of shuffled objectives, for the largest share of all axes at
once, so that one axis of many is not taken for important because there are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexmem.results.intervals import Z
from indexmem.results.sweeps import Sweep

FEWEST = 8  # trials; fewer explain nothing
GROUPS = 3  # of equally many trials, that a range is cut into
SHUFFLES = 2000


@dataclass(frozen=True)
class Importance:
    """Of one axis: the share in [0, 1] with its 95% limits, and the adjusted p-value of no share at all."""

    axis: str
    share: float
    low: float
    high: float
    p_value: float


def importances(sweep: Sweep) -> tuple[Importance, ...]:
    """By the first objective, the most important axis first; () where there are too few trials, or all are equal."""
    trials, metric = sweep.valued, sweep.objectives[0].metric
    values_T = np.array([trial.metrics[metric] for trial in trials])
    if len(trials) < FEWEST or np.ptp(values_T) == 0:
        return ()
    groups = {axis: _groups([t.params.get(axis) for t in trials], setting) for axis, setting in sweep.axes.items()}
    groups = {axis: group_T for axis, group_T in groups.items() if 1 < len(set(group_T.tolist())) < len(trials) - 1}
    rng = np.random.default_rng(0)
    shuffled_RT = rng.permuted(np.tile(values_T, (SHUFFLES, 1)), axis=1)
    largest_R = np.max([np.zeros(SHUFFLES), *(_shares(shuffled_RT, g) for g in groups.values())], axis=0)
    found = [_importance(axis, values_T, group_T, largest_R) for axis, group_T in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.share))


def _importance(axis: str, values_T: NDArray[Any], group_T: NDArray[Any], largest_R: NDArray[Any]) -> Importance:
    share, count = float(_shares(values_T[None], group_T)[0]), len(values_T)
    without = [_shares(np.delete(values_T, t)[None], np.delete(group_T, t))[0] for t in range(count)]
    half = Z * float(np.sqrt((count - 1) * np.var(without)))
    p_value = (np.count_nonzero(largest_R >= share - 1e-12) + 1) / (SHUFFLES + 1)
    return Importance(axis, max(0.0, share), max(0.0, share - half), min(1.0, max(0.0, share + half)), float(p_value))


def _shares(values_RT: NDArray[Any], group_T: NDArray[Any]) -> NDArray[Any]:
    """[R]: adjusted R^2 of the groups; at most 1, below 0 where they explain less than chance."""
    names, count = np.unique(group_T), len(group_T)
    centred_RT = values_RT - values_RT.mean(axis=1, keepdims=True)
    between_R = sum(centred_RT[:, group_T == g].sum(axis=1) ** 2 / np.count_nonzero(group_T == g) for g in names)
    total_R = (centred_RT**2).sum(axis=1)
    explained_R = np.divide(between_R, total_R, out=np.zeros_like(total_R), where=total_R > 0)
    shares: NDArray[Any] = 1 - (1 - explained_R) * (count - 1) / (count - len(names))
    return shares


def _groups(values: list[Any], setting: Any) -> NDArray[np.int64]:
    """[T]: listed values are groups; those of a range are put in order and cut."""
    if isinstance(setting, list):
        names = {repr(value): number for number, value in enumerate(setting)}
        return np.array([names.get(repr(value), len(names)) for value in values])
    order = np.argsort(np.argsort(np.array(values, dtype=float), kind="stable"), kind="stable")
    return np.array(order * GROUPS // len(values))
