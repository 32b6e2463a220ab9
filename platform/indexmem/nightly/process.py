"""A step in a process of its own: what crashes there, or has to be stopped, does not take the night with it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from indexmem.nightly.steps import NightStep
from indexmem.signals import StopSignals

TICK_SECONDS = 0.2
STOP_SECONDS = 30.0  # to end after SIGTERM, on top of what the grid may take to drain
SOME_FAILED = 64  # exit code of a step that is done, with failed rows: 1 may also mean that Python itself gave up
LAST_LINES = 15  # of the log, shown when a step fails


@dataclass(frozen=True)
class Limits:
    """What can end a step early."""

    seconds: float | None  # from its start; None: no limit
    stop: StopSignals
    tick: Callable[[], None]  # called several times a second; may raise to end the step


Execute = Callable[[NightStep, Limits], int]  # -> exit code; negative: the signal that ended it


@dataclass(frozen=True)
class StepProcess:
    """Runs `indexmem VERB SPEC`; what it prints goes to the step's log."""

    address: str | None = None  # Ray cluster; None: RAY_ADDRESS, else a private one
    program: tuple[str, ...] = (sys.executable, "-m", "indexmem.commands.nightly_step")

    def __call__(self, step: NightStep, limits: Limits) -> int:
        """Run the step to its end, or ask it to end early with SIGTERM, so that it stores what it is working on."""
        address = ["--address", self.address] if self.address else []
        return self._run(step, address, limits)

    def check(self, step: NightStep) -> int:
        """A dry run: 2 when its spec asks for what does not exist."""
        return self._run(step, ["--dry-run"], Limits(None, StopSignals(), lambda: None))

    def _run(self, step: NightStep, options: list[str], limits: Limits) -> int:
        command = [*self.program, step.verb, str(step.spec), *options]
        with step.log.open("a", encoding="utf-8") as log:
            # Its own session: Ctrl-C and a service manager's signal come to the night, which passes one on.
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
            try:
                return _await(child, limits, step.experiment.grid.drain_seconds + STOP_SECONDS)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                assert child.stdin is not None
                child.stdin.close()


def last_lines(step: NightStep) -> str:
    """The end of a step's log, for the one who looks why it failed."""
    if not step.log.is_file():
        return ""
    with step.log.open(encoding="utf-8", errors="replace") as log:
        return "".join(f"    {line.rstrip()}\n" for line in deque(log, LAST_LINES))


def _await(child: subprocess.Popen[bytes], limits: Limits, patience: float) -> int:
    start = time.monotonic()
    asked: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(TICK_SECONDS)
        seconds = time.monotonic() - start
        limits.tick()
        late = limits.seconds is not None and seconds > limits.seconds
        if asked is None and (late or limits.stop.received is not None):
            child.terminate()
            asked = seconds
        elif asked is not None and seconds - asked > patience:
            child.kill()
