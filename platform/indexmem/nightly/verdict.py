"""The outcome of a night as data: written once, read by pages, MLflow, the webhook and later nights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Literal

from indexmem.config.section import Section

Status = Literal["fine", "failures", "coverage", "regression"]
EXIT_CODES: dict[Status, int] = {"fine": 0, "failures": 1, "coverage": 5, "regression": 3}
NAMES = 4  # that a headline lists of a kind; the page has all


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
    """A median time of a method that grew on the same kind of device, in prefills of the same samples. No alarm."""

    suite: str
    method: str
    measure: str
    before: float
    now: float


class Lost(Section):
    """A cell that had more samples on the night that tonight's coverage is held against."""

    suite: str
    method: str
    where: str  # budget and benchmark
    samples: int  # that have no row tonight, not even a failed one; none of a training


class Changed(Section):
    """Something of a suite's settings, code, data or libraries that was different on the night before."""

    suite: str
    what: str  # "grid.seed", "commit", "torch", ...
    before: str
    now: str


class Flip(Section):
    """A sample that a method used to answer right and no longer does, or the other way round."""

    suite: str
    method: str
    sample: str
    worse: tuple[str, ...]  # budgets
    better: tuple[str, ...]


class ModuleLoss(Section):
    """A trained module's loss over its last steps."""

    module: str  # "loss indexer"
    before: float | None = None  # mean over the nights before; None without any
    now: float
    worse: bool = False  # so much higher than on each of them that it is a regression


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
    losses: tuple[ModuleLoss, ...] = ()
    report: str = ""  # the grid's own, from the night's folder

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
    lost: tuple[Lost, ...] = ()
    changed: tuple[Changed, ...] = ()
    changed_since: dt.date | None = None  # the last good night; None: there is none
    flips: tuple[Flip, ...] = ()  # those in most budgets first
    saturated: int = 0  # cells in which no sample can become better, or none worse
    notes: tuple[str, ...] = ()

    @property
    def regressed(self) -> bool:
        return bool(self.regressions) or any(loss.worse for suite in self.suites for loss in suite.losses)

    @property
    def status(self) -> Status:
        if self.regressed:
            return "regression"
        if self.lost:
            return "coverage"
        return "failures" if any(suite.troubled for suite in self.suites) else "fine"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def rows(self) -> int:
        return sum(suite.rows for suite in self.suites)

    @property
    def failed(self) -> int:
        return sum(suite.failed for suite in self.suites)

    @property
    def measured(self) -> bool:
        """Whether later nights have something to be compared with."""
        return self.rows > self.failed or any(suite.losses for suite in self.suites)

    def scores(self, suite: str) -> dict[str, float]:
        """Mean scores by method."""
        return {each.method: each.now for outcome in self.suites if outcome.name == suite for each in outcome.scores}

    @property
    def commit(self) -> str:
        return ", ".join(sorted({commit for suite in self.suites for commit in suite.commits}))

    @property
    def headline(self) -> str:
        """One sentence, for a subject line: what moved, the worst first, and what may be why."""
        worse = [loss for suite in self.suites for loss in suite.losses if loss.worse]
        incomplete = [step.name for suite in self.suites for step in suite.steps if not step.complete]
        said = _largest(self.regressions)
        said += [f"{loss.module} {loss.before:.3g} -> {loss.now:.3g}" for loss in worse]
        for suite in dict.fromkeys(lost.suite for lost in self.lost):
            methods = [lost.method for lost in self.lost if lost.suite == suite]
            said.append(f"{len(methods)} cells of {suite} are gone or short ({_some(methods)})")
        said += [f"{self.failed} rows failed"] if self.failed else []
        said += [f"{', '.join(incomplete)} did not end well"] if incomplete else []
        said += _largest(self.improvements)
        said = said or [self._as_before()]
        for name, found in (
            ("slower", [slow.method for slow in self.slowdowns]),
            ("changed", [change.what for change in self.changed if change.what != "commit"]),
        ):
            said += [f"{name}: {_some(found)}"] if found else []
        return f"{self.status.capitalize()}: {'; '.join(said)}."

    def _as_before(self) -> str:
        if self.status == "failures":
            return "a suite has no rows"
        if not self.compared:
            return "nothing was compared" if self.reference else "no earlier night to compare with"
        nights = "night before" if len(self.reference) == 1 else f"{len(self.reference)} nights before"
        saturated = f", {self.saturated} of them saturated" if self.saturated else ""
        return f"{self.compared} cells as on the {nights}{saturated}"


def _largest(changes: tuple[Change, ...]) -> list[str]:
    """The largest change of each method and suite, in the order given."""
    largest: dict[str, float] = {}
    for change in changes:
        largest.setdefault(f"{change.method} ({change.suite})", change.effect)
    return [f"{name} {100 * effect:+.1f} points" for name, effect in largest.items()]


def _some(names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    return ", ".join(known[:NAMES]) + (f" and {len(known) - NAMES} more" if len(known) > NAMES else "")
