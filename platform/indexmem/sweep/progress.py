"""How far a sweep is, for whoever watches it."""

from __future__ import annotations

import time
from collections import Counter

from indexmem.progress.status import FailureNote, RunStatus, left_at
from indexmem.results.sweeps import ENDED, FAILED, RUNNING, STOPPED, Sweep


class SweepProgress:
    """Turns states of a sweep into records of its progress. Trials under way count in part, by their steps."""

    def __init__(self, steps: int) -> None:
        """`steps`: training steps of a trial."""
        self._steps = max(1, steps)
        self._started: tuple[float, float] | None = None  # time, and trials' worth of work that was done by then

    def status(self, sweep: Sweep) -> RunStatus:
        """How far the sweep is now."""
        now, work = time.monotonic(), self._work(sweep)
        if self._started is None:
            self._started = now, _ended(sweep)
        began, before = self._started
        rate = (work - before) / (now - began) if work > before and now > began else None
        done = [done - before for done in (_ended(sweep), work)]  # with and without what is under way
        rates = [trials / (now - began) for trials in done] if now > began else []
        counts = Counter(trial.status for trial in sweep.trials)
        return RunStatus(
            unit="trials",
            total=sweep.planned,
            done=len(sweep.trials) - counts[RUNNING],
            failed=counts[FAILED],
            rate=rate,
            left_seconds=left_at(sweep.planned - work, rates),
            actors=counts[RUNNING],
            note="  ".join(_notes(sweep, counts[STOPPED])),
            failures=tuple(FailureNote.of(f"trial {t.number}", t.error) for t in reversed(sweep.trials) if t.error),
            measured=_best(sweep),
        )

    def _work(self, sweep: Sweep) -> float:
        under_way = sum(min(1.0, t.step / self._steps) for t in sweep.trials if t.status == RUNNING)
        return under_way + _ended(sweep)


def _ended(sweep: Sweep) -> int:
    return sum(trial.status in ENDED for trial in sweep.trials)


def _notes(sweep: Sweep, stopped: int) -> list[str]:
    best = [f"best {sweep.describe(sweep.best)}"] if sweep.best is not None else []
    return ([f"{stopped} stopped early"] if stopped else []) + best


def _best(sweep: Sweep) -> dict[str, float]:
    """The first objective's best value so far, if there is any."""
    metric = sweep.objectives[0].metric
    return {f"best {metric}": sweep.best.metrics[metric]} if sweep.best is not None else {}
