"""The outcome of a night as data: written once, read by pages, MLflow, the webhook and later nights."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from indexmem.config.section import Section

Status = Literal["fine", "failures", "regression"]
EXIT_CODES: dict[Status, int] = {"fine": 0, "failures": 1, "regression": 3}


class Change(Section):
    """A mean score that moved by more than noise: of one cell, or of a method over all its cells of a suite."""

    suite: str
    method: str
    budget: str | None = None  # None: all budgets and benchmarks
    benchmark: str | None = None
    samples: int
    before: float
    now: float
    low: float  # 95% interval of now - before
    high: float
    p_value: float  # adjusted for all that was compared

    @property
    def effect(self) -> float:
        return self.now - self.before

    @property
    def where(self) -> str:
        """'all budgets and benchmarks' or '75%, niah_single_1'."""
        return f"{self.budget}, {self.benchmark}" if self.budget else "all budgets and benchmarks"


class Slowdown(Section):
    """A median time of a method that grew on the same kind of device. A warning, no alarm."""

    suite: str
    method: str
    measure: str
    before: float  # seconds
    now: float


class StepOutcome(Section):
    """How a verb of a suite ended."""

    name: str
    ending: str  # "done", "exit code 1", "not finished", ...
    complete: bool
    seconds: float


class MethodScore(Section):
    """A method's mean score in a suite."""

    method: str
    now: float
    before: float | None = None  # over the earlier nights, on the samples that both have; None without any


class SuiteOutcome(Section):
    """What a suite left behind."""

    name: str
    rows: int
    failed: int
    commits: tuple[str, ...]  # of the code that computed the rows
    scores: tuple[MethodScore, ...]
    steps: tuple[StepOutcome, ...]

    @property
    def troubled(self) -> bool:
        evaluated = any(step.name.endswith("/eval") for step in self.steps)
        return self.failed > 0 or any(not step.complete for step in self.steps) or (evaluated and not self.rows)


class NightVerdict(Section):
    """What is stored as verdict.json."""

    nightly: str
    date: dt.date
    reference: tuple[dt.date, ...]  # nights that it was compared with, newest first
    suites: tuple[SuiteOutcome, ...]
    compared: int  # cells with a reference
    level: float  # chance of an alarm when nothing changed, at most
    minimum_effect: float
    regressions: tuple[Change, ...] = ()  # the largest first
    improvements: tuple[Change, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be compared, and why

    @property
    def status(self) -> Status:
        if self.regressions:
            return "regression"
        return "failures" if any(suite.troubled for suite in self.suites) else "fine"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def commit(self) -> str:
        return ", ".join(sorted({commit for suite in self.suites for commit in suite.commits}))

    @property
    def headline(self) -> str:
        """One sentence, for a subject line."""
        failed = sum(suite.failed for suite in self.suites)
        incomplete = [step.name for suite in self.suites for step in suite.steps if not step.complete]
        if self.regressions:
            largest = {(change.suite, change.method): change.effect for change in reversed(self.regressions)}
            losses = [f"{method} ({suite}) {100 * effect:+.1f} points" for (suite, method), effect in largest.items()]
            return f"Regression: {', '.join(reversed(losses))}."
        if self.status == "failures":
            parts = [f"{failed} rows failed"] if failed else []
            parts += [f"{', '.join(incomplete)} did not end well"] if incomplete else []
            return f"No regression, but {' and '.join(parts) or 'a suite has no rows'}."
        if not self.compared:
            return "Fine. There was no earlier night to compare with."
        return f"Fine: {self.compared} cells as on the {len(self.reference)} nights before."
