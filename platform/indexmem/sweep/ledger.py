"""The driver's record of a sweep: which trials there are and how far each is. On disk before anyone acts on it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from indexmem.results.sweeps import COMPLETE, ENDED, FAILED, RUNNING, STOPPED, Spread, Sweep, SweepFolder, Trial
from indexmem.sweep.proposals import Proposer
from indexmem.sweep.space import trial_id


class Ledger:
    """Reads the record and goes on: trials that were under way or failed come first, then new proposals."""

    def __init__(self, folder: SweepFolder, sweep: Sweep, proposer: Proposer, git_commit: str = "") -> None:
        """`sweep` says what is searched; its trials are read from `folder`."""
        folder.write_header(sweep)
        self._folder, self._sweep, self._proposer, self._git_commit = folder, sweep, proposer, git_commit
        self._trials = {trial.id: trial for trial in folder.trials()}
        self._again = [trial for trial in self._trials.values() if trial.status not in ENDED]
        self._since: dict[str, float] = {}  # trial -> when its work was last counted

    @property
    def sweep(self) -> Sweep:
        """The sweep as it is now."""
        return replace(self._sweep, trials=tuple(self._trials.values()))

    @property
    def left(self) -> int:
        """Trials that this run has still to begin, at most."""
        return len(self._again) + max(0, self._sweep.planned - len(self._trials))

    def status(self, trial: str) -> str:
        """RUNNING, or how the trial has ended."""
        return self._trials[trial].status

    def next(self) -> Trial | None:
        """Begin a trial; None when there is nothing left to try."""
        if self._again:
            return self._put(replace(self._again.pop(0), status=RUNNING, error=""))
        params = self._proposer.propose(list(self._trials.values())) if self.left else None
        if params is None:
            return None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        number = 1 + max((trial.number for trial in self._trials.values()), default=-1)  # some may be lost
        trial = Trial(trial_id(params), number, RUNNING, params, started_at=now, git_commit=self._git_commit)
        return self._put(trial)

    def begin_work(self, trial: str) -> None:
        """The trial's work begins, for the first time or again after its worker was lost."""
        self._since[trial] = time.monotonic()
        # What was reported before an interruption is reported once more.
        known = self._trials[trial]
        self._put(replace(known, metrics={}, curve=(), attempts=known.attempts + 1))

    def report(self, trial: str, row: Mapping[str, float], distill_id: str = "") -> None:
        """The training `distill_id` has come to `row['step']`, with these metrics."""
        known = self._worked(trial)
        metrics = {name: value for name, value in row.items() if name != "step"}
        self._put(replace(known, metrics=metrics, curve=(*known.curve, dict(row)), distill_id=distill_id))

    def complete(self, trial: str, metrics: Mapping[str, float], **found: Any) -> None:
        """The trial is done; it fails where an objective is missing. `found` are other fields, such as cell_ids."""
        known = self._worked(trial)
        done = replace(known, status=COMPLETE, metrics={**known.metrics, **metrics}, **found)
        missing = [o.metric for o in self._sweep.objectives if done.value(o) is None]
        if missing:
            done = replace(done, status=FAILED, error=f"it has not measured {', '.join(missing)}")
        self._put(done)

    def stop(self, trial: str) -> None:
        """The scheduler has ended the trial; what it measured stays."""
        self._put(replace(self._worked(trial), status=STOPPED))

    def fail(self, trial: str, error: str) -> None:
        """The trial cannot be finished in this run."""
        self._put(replace(self._worked(trial), status=FAILED, error=error))

    def report_fresh(
        self,
        trial: str,
        metrics: Mapping[str, float],
        cell_ids: tuple[str, ...] = (),
        spread: Mapping[str, Spread] = MappingProxyType({}),
    ) -> None:
        """What a winner reaches on samples that chose no trial."""
        known = self._trials[trial]
        self._put(replace(known, fresh=dict(metrics), fresh_spread=dict(spread), fresh_cell_ids=cell_ids))

    def _worked(self, trial: str) -> Trial:
        now = time.monotonic()
        known = self._trials[trial]
        seconds = now - self._since.get(trial, now)
        self._since[trial] = now
        return replace(known, seconds=round(known.seconds + seconds, 3))

    def _put(self, trial: Trial) -> Trial:
        self._folder.write(trial)
        self._trials[trial.id] = trial
        return trial
