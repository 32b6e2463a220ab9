"""Successive halving that survives its driver: rungs are filled again from what trials reported before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from indexmem.config.schema import SweepConfig
from indexmem.results.sweeps import ENDED, Trial

FIRST_RUNG = 1 / 9  # of the schedule, where the spec does not say: with a reduction by 3, rungs at 1/9 and 1/3


def make_scheduler(sweep: SweepConfig, steps: int, trials: Iterable[Trial]) -> TrialScheduler:
    """What `sweep.scheduler` names, for trainings of up to `steps` steps, after the `trials` of earlier runs.

    A row without "step" is not judged (Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020).
    """
    if sweep.scheduler == "none":
        return FIFOScheduler()
    grace = min(sweep.asha.grace or max(1, math.ceil(steps * FIRST_RUNG)), steps)
    # Time is the trial's own step: Tune's count of reports starts again when a trial does.
    asha = ASHAScheduler(
        "step", sweep.asha.metric, "min", max_t=steps, grace_period=grace, reduction_factor=sweep.asha.reduction,
        stop_last_trials=False,
    )  # fmt: skip
    nobody: Any = None
    for trial in trials:
        if trial.status in ENDED:
            known: Any = SimpleNamespace(trial_id=trial.id)  # all that it looks at
            asha.on_trial_add(nobody, known)
            for row in trial.curve:
                asha.on_trial_result(nobody, known, dict(row))
            asha.on_trial_remove(nobody, known)
    return asha
