"""What to try next, as a function of the spec and of the trials so far.

Nothing else is remembered between two proposals, so a sweep that was killed goes on like one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from indexmem.config.schema import SweepConfig
from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Trial
from indexmem.sweep.space import Params, Space, trial_id

STARTUP_TRIALS = 10  # drawn at random before there is something to learn from
TRIES = 200  # proposals of known points in a row before a space counts as exhausted
STATES: Mapping[str, TrialState] = MappingProxyType(
    {
        RUNNING: TrialState.RUNNING,
        COMPLETE: TrialState.COMPLETE,
        STOPPED: TrialState.PRUNED,
        FAILED: TrialState.FAIL,
    }
)


class Proposer:
    """What `sweep.search` names: every combination of the listed values in order, or points from an Optuna sampler.

    The sampler is made anew for each proposal, from the sweep's seed and its trials.
    """

    def __init__(self, space: Space) -> None:
        self._space, self._sweep = space, space.experiment.sweep
        self._distributions = {name: _distribution(space, name) for name in space.axes}

    def propose(self, trials: Sequence[Trial]) -> dict[str, Any] | None:
        """Settled settings that none of `trials` has, which are all of the sweep so far; None when there are none."""
        known = {trial.id for trial in trials}
        draws = self._space.corners() if self._sweep.search == "grid" else self._draws(trials)
        return next((params for params in draws if trial_id(params) not in known), None)

    def _draws(self, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            directions=["minimize"] * len(self._sweep.objectives),
            sampler=_sampler(self._sweep, self._sweep.seed + len(trials)),
        )
        study.add_trials([self._known(trial) for trial in trials])
        for _ in range(TRIES):
            yield self._settings(study.ask(self._distributions).params)

    def _settings(self, drawn: Params) -> dict[str, Any]:
        """Of a list Optuna knows the positions alone: it takes no values other than numbers and texts."""
        levels, axes = self._space.levels, self._space.axes
        return self._space.settled({n: v if axes[n].is_range else levels[n][v] for n, v in drawn.items()})

    def _known(self, trial: Trial) -> FrozenTrial:
        levels, axes = self._space.levels, self._space.axes
        complete = trial.status == COMPLETE
        metric = self._sweep.asha.metric
        return create_trial(
            state=STATES[trial.status],
            params={n: v if axes[n].is_range else levels[n].index(v) for n, v in trial.params.items()},
            distributions=self._distributions,
            values=[o.sign * trial.metrics[o.metric] for o in self._sweep.objectives] if complete else None,
            intermediate_values={int(row["step"]): row[metric] for row in trial.curve if metric in row},
        )


def _sampler(sweep: SweepConfig, seed: int) -> optuna.samplers.BaseSampler:
    """Evenly at random, or the tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011; for several objectives
    Ozaki et al., JAIR 2022), for which trials under way count as bad, so that those that run together differ.
    """
    if sweep.search == "random":
        return optuna.samplers.RandomSampler(seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True)


def _distribution(space: Space, name: str) -> BaseDistribution:
    axis = space.axes[name]
    if not axis.is_range:
        return CategoricalDistribution(range(len(axis.values)))
    low, high = axis.ends
    if name in space.whole:
        return IntDistribution(int(low), int(high), log=axis.log)
    return FloatDistribution(low, high, log=axis.log)
