"""What a sweep tells: which settings matter, and which values go with good trials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexmem.results.sweeps import Sweep

FEWEST_TRIALS = 8  # fewer say nothing about several settings
TREES, SHUFFLES = 60, 10


@dataclass(frozen=True)
class Importance:
    """How much a forest's fit of the objective suffers when one setting is shuffled: mean and spread over shuffles."""

    axis: str
    mean: float  # loss of R^2
    spread: float


def importances(sweep: Sweep) -> tuple[Importance, ...]:
    """The settings by weight for the first objective, heaviest first; none with fewer than FEWEST_TRIALS trials."""
    trials, axes = sweep.valued, varied(sweep)
    if len(trials) < FEWEST_TRIALS or not axes:
        return ()
    x = np.array([[scaled(sweep, axis, trial.params.get(axis)) for axis in axes] for trial in trials])
    y = np.array([trial.metrics[sweep.objectives[0].metric] for trial in trials])
    if np.ptp(y) == 0:
        return ()
    from sklearn.ensemble import RandomForestRegressor  # takes a second, and reports without a sweep do without
    from sklearn.inspection import permutation_importance

    forest = RandomForestRegressor(TREES, random_state=0).fit(x, y)
    found = permutation_importance(forest, x, y, n_repeats=SHUFFLES, random_state=0)
    weights = map(Importance, axes, found.importances_mean.tolist(), found.importances_std.tolist())
    return tuple(sorted(weights, key=lambda weight: -weight.mean))


def varied(sweep: Sweep) -> tuple[str, ...]:
    """Axes with at least two values among the trials."""
    return tuple(axis for axis in sweep.axes if len({repr(t.params.get(axis)) for t in sweep.trials}) > 1)


def values(sweep: Sweep, axis: str) -> list[Any]:
    """Different values of an axis among the trials: numbers ascending, otherwise in the order of the spec."""
    seen = list({repr(t.params.get(axis)): t.params.get(axis) for t in sweep.trials}.values())
    return sorted(seen, key=float) if all(_number(value) for value in seen) else sorted(seen, key=repr)


def scaled(sweep: Sweep, axis: str, value: Any) -> float:
    """Where a value stands on its axis, in [0, 1]: numbers to scale (logarithmic if searched so), others evenly."""
    known = values(sweep, axis)
    if not all(_number(item) for item in known):
        return list(map(repr, known)).index(repr(value)) / max(1, len(known) - 1)
    low, high, at = (_warped(sweep, axis, item) for item in (known[0], known[-1], value))
    return (at - low) / (high - low) if high > low else 0.5


def _warped(sweep: Sweep, axis: str, value: Any) -> float:
    searched = sweep.axes[axis]
    logarithmic = isinstance(searched, dict) and searched.get("log") and value > 0
    return math.log(value) if logarithmic else float(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
