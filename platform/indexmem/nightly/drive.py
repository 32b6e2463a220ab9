"""The steps of a night, one after another, within its budget. What is done is not done again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from indexmem.config.nightly import NightBudget
from indexmem.nightly.night import Night, NightRecord, StepRecord, StepStatus
from indexmem.nightly.process import SOME_FAILED, Execute, Limits, last_lines
from indexmem.nightly.steps import NightStep
from indexmem.progress.status import duration
from indexmem.signals import StopSignals

SAVE_SECONDS = 15.0  # of work that a SIGKILL may leave out of the record
COMPLETE = (0, SOME_FAILED)  # exit codes of a step that did all of its work
STOPPED = {-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM}  # codes of a step that was asked to end


def to_do(record: NightRecord, steps: Sequence[NightStep]) -> list[NightStep]:
    """Steps that are not done."""
    return [step for step in steps if record.of(step.name).status != "done"]


def seconds_left(budget: NightBudget, record: NightRecord, gpus: float) -> float | None:
    """How long a step with so many GPUs may run; None: without limit."""
    limits = []
    if budget.wall_hours is not None:
        limits.append(budget.wall_hours * 3600 - record.seconds)
    if budget.gpu_hours is not None and gpus:
        limits.append((budget.gpu_hours * 3600 - record.gpu_seconds) / gpus)
    return min(limits) if limits else None


@dataclass
class Drive:
    """Runs steps and keeps the record."""

    night: Night
    budget: NightBudget
    execute: Execute
    stop: StopSignals
    check: Callable[[], None]  # raises when the night is no longer ours
    say: Callable[[str], None]

    def run(self, steps: Sequence[NightStep]) -> None:
        """Work through what is not done, until a signal comes. A step that fails takes the rest of its suite with it.

        Raises what `check` raises.
        """
        broken: set[str] = set()
        for step in to_do(self.night.record(), steps):
            if self.stop.received is not None:
                return
            if step.suite in broken:
                continue
            left = seconds_left(self.budget, self.night.record(), step.gpus)
            if left is not None and left <= 0:
                self.say(f"{step.name}: the night's budget is spent")
                continue
            if self._run(step, left).status != "done":
                broken.add(step.suite)

    def _run(self, step: NightStep, left: float | None) -> StepRecord:
        self.say(f"{step.name}: {step.log}")
        meter = StepClock(self.night, step)

        def tick() -> None:
            self.check()
            meter.save_now_and_then()

        code = self.execute(step, Limits(left, self.stop, tick))
        asked = self.stop.received is not None or (left is not None and meter.seconds > left)
        status: StepStatus = "failed"
        if code in COMPLETE:
            status = "done"
        elif asked and code in STOPPED:
            status = "unfinished"
        record = meter.save(status, code)
        self.say(f"{step.name}: {step_ending(record)}, {duration(meter.seconds)}")
        if status == "failed":
            self.say(last_lines(step))
        return record


class StepClock:
    """Counts what a step spends and keeps it in the night's record, on top of earlier attempts."""

    def __init__(self, night: Night, step: NightStep) -> None:
        self._night, self._step = night, step
        self._before = night.record().of(step.name)
        self._start = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Of this attempt."""
        return time.monotonic() - self._start

    def save_now_and_then(self) -> None:
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save("unfinished", None)

    def save(self, status: StepStatus, code: int | None) -> StepRecord:
        record = StepRecord(
            status=status,
            exit_code=code,
            seconds=self._before.seconds + self.seconds,
            gpu_seconds=self._before.gpu_seconds + self.seconds * self._step.gpus,
        )
        self._night.save(self._night.record().updated(self._step.name, record))
        self._saved = time.monotonic()
        return record


def step_ending(record: StepRecord) -> str:
    """How a step ended, in words."""
    if record.status == "done":
        return "done" if record.exit_code == 0 else "done, some rows failed"
    if record.status == "unfinished":
        return "not finished"
    assert record.exit_code is not None
    if record.exit_code < 0:
        return f"ended by {signal.Signals(-record.exit_code).name}"
    return f"exit code {record.exit_code}"
