"""What is stored of a sweep: one file says what was searched, and one file a trial what came out.

Layout: <run root>/sweeps/<sweep id>/sweep.json and trials/<trial id>.json, each written whole or not at all, by the
sweep's driver alone. Weights and rows of a trial lie where those of every other run lie: `Trial.distill_id` names the
folder under <run root>/distill, `Trial.cell_ids` the rows, `fresh_cell_ids` those of a winner's report.

    for sweep in read_sweeps(root):
        print(sweep.name, sweep.best, len(sweep.front))
        sweep.table()     # one row a trial: id, number, status, ..., a column for each axis and for each metric
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from indexmem.config.sweep import Objective
from indexmem.errors import UserError
from indexmem.files import write_whole
from indexmem.results.comparison import max_t
from indexmem.results.pareto import pareto_front
from indexmem.results.summary import ALPHA

RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"
BYTES, COSTS = "bytes", ("bytes", "ms")  # metrics that tell which of equal trials is the cheapest, in this order
MISSHAPEN = (ValueError, TypeError, KeyError, AttributeError)  # what a file that is not what was written raises
ENDED = (COMPLETE, STOPPED)  # never tried again; a failed one is, by the next run of the same command
COLUMNS = ("id", "number", "status", "step", "seconds", "distill_id", "error")  # of a table, before axes and metrics


@dataclass(frozen=True)
class Spread:
    """How sure a mean score is: its 95% limits, and what each unit of samples that depend on no other adds to it."""

    low: float
    high: float
    units: tuple[float, ...] = ()  # in the order of samples, which all trials share; their sum is the mean


@dataclass(frozen=True)
class Trial:
    """One set of settings and what came of it. Times in seconds."""

    id: str  # content hash of `params`
    number: int  # in the order of proposals, from 0
    status: str  # RUNNING | COMPLETE | STOPPED (early, by the scheduler) | FAILED
    params: Mapping[str, Any]  # dotted name of each axis -> its value in this trial
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last ones; of a stopped trial those of training
    curve: tuple[Mapping[str, float], ...] = ()  # {'step': ..., 'loss': ...} at each report of the training
    distill_id: str = ""  # "" where nothing is trained
    cell_ids: tuple[str, ...] = ()
    seconds: float = 0.0  # of work, that of interrupted attempts included
    attempts: int = 0  # times that its work was begun
    error: str = ""
    started_at: str = ""  # ISO 8601, UTC
    git_commit: str = ""
    fresh: Mapping[str, float] = field(default_factory=dict)  # of a winner: on samples that chose no trial
    spread: Mapping[str, Spread] = field(default_factory=dict)  # of the scores among the objectives
    fresh_spread: Mapping[str, Spread] = field(default_factory=dict)
    fresh_cell_ids: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """Training steps done, as last reported."""
        return int(self.curve[-1]["step"]) if self.curve else 0

    def value(self, objective: Objective) -> float | None:
        """What the trial reached; None unless it is complete and has the metric."""
        return self.metrics.get(objective.metric) if self.status == COMPLETE else None


@dataclass(frozen=True)
class Sweep:
    """A sweep as it is on disk, perhaps still under way."""

    id: str
    name: str
    model: str
    axes: Mapping[str, Any]  # dotted name -> [values] or {'low', 'high', 'log'}
    objectives: tuple[Objective, ...]
    planned: int  # trials in all
    trials: tuple[Trial, ...] = ()  # by number
    evaluates: bool = False  # some objective is measured on the grid
    repeated: tuple[str, ...] = ()  # benchmarks of which the winners' report has samples that trials were compared by

    @property
    def finished(self) -> bool:
        return sum(trial.status in ENDED for trial in self.trials) >= self.planned

    @property
    def valued(self) -> tuple[Trial, ...]:
        """Complete trials with all objectives."""
        return tuple(t for t in self.trials if all(t.value(objective) is not None for objective in self.objectives))

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """`valued`, the best by the objectives in their order first; of equal trials what holds fewer bytes, then what
        takes less time.
        """
        return tuple(sorted(self.valued, key=self._order))

    def _order(self, trial: Trial) -> tuple[float, ...]:
        costs = (trial.metrics.get(name, math.inf) for name in COSTS)
        return (*self._values_down(trial), *costs, trial.number)

    def _values_down(self, trial: Trial) -> list[float]:
        """All objectives, small is good; rounding must not tell equal trials apart."""
        return [round(objective.sign * trial.metrics[objective.metric], 12) for objective in self.objectives]

    @property
    def counts(self) -> dict[str, int]:
        """Status -> trials that ended so."""
        return {status: sum(t.status == status for t in self.trials) for status in (COMPLETE, STOPPED, FAILED)}

    def fresh_values(self, trial: Trial) -> dict[str, float]:
        """The trial's objectives on fresh samples, as far as they were measured."""
        return {o.metric: trial.fresh[o.metric] for o in self.objectives if o.metric in trial.fresh}

    def describe(self, trial: Trial) -> str:
        """'trial 4: score 0.62 [0.51, 0.71], ms 91 (indexer.dim=8); on fresh samples score 0.58 [0.4, 0.7], ms 90'."""
        settings = (f"{name}={setting_text(value)}" for name, value in trial.params.items())
        text = f"trial {trial.number}: {self._values(trial.metrics, trial.spread)} ({', '.join(settings)})"
        fresh = self._values(trial.fresh, trial.fresh_spread)
        return f"{text}; on fresh samples {fresh}" if fresh else text

    def _values(self, metrics: Mapping[str, float], spread: Mapping[str, Spread]) -> str:
        names = [objective.metric for objective in self.objectives if objective.metric in metrics]
        return ", ".join(f"{name} {spread_text(metrics[name], spread.get(name))}" for name in names)

    @property
    def front(self) -> tuple[Trial, ...]:
        """Trials that no other one beats in all objectives, the best by the first objective first."""
        ranked = self.ranked
        return tuple(ranked[index] for index in pareto_front([self._values_down(trial) for trial in ranked]))

    @property
    def best(self) -> Trial | None:
        """The best trial by the first objective; of equal ones the cheapest."""
        return next(iter(self.ranked), None)

    @property
    def tied(self) -> tuple[Trial, ...]:
        """Of one objective: trials that are not worse than the best by more than noise, in a test on the same samples
        that knows that the best was picked (`comparison.max_t`). Of losses, bytes and times: those that are equal.
        """
        ranked, best = self.ranked, self.best
        if best is None or len(self.objectives) > 1:
            return ()
        metric = self.objectives[0].metric
        equal = {trial.id for trial in ranked if self._values_down(trial) == self._values_down(best)}
        compared = (
            [t for t in ranked if metric in t.spread and len(t.spread[metric].units) == len(best.spread[metric].units)]
            if metric in best.spread
            else []
        )
        if len(compared) > 1:
            p_T = max_t(np.array([trial.spread[metric].units for trial in compared]).T, 0, picked=True)
            equal |= {trial.id for trial, p in zip(compared, p_T) if p >= ALPHA}
        return tuple(trial for trial in ranked if trial.id in equal and trial.id != best.id)

    @property
    def tie_text(self) -> str:
        """'Not worse than trial 4 by more than noise: trials 3 and 7. Trial 7 holds 62% of its bytes.', or ''."""
        tied, best = self.tied, self.best
        if best is None or not tied:
            return ""
        *others, last = [str(trial.number) for trial in tied]
        named = f"trials {', '.join(others)} and {last}" if others else f"trial {last}"
        text = f"Not worse than trial {best.number} by more than noise: {named}."
        cheapest = min((best, *tied), key=lambda trial: trial.metrics.get(BYTES, math.inf))
        if cheapest is best:
            return f"{text} None of them holds fewer bytes." if BYTES in best.metrics else text
        return f"{text} Trial {cheapest.number} holds {cheapest.metrics[BYTES] / best.metrics[BYTES]:.0%} of its bytes."

    @property
    def winners(self) -> tuple[Trial, ...]:
        """The Pareto front of several objectives, or the best trial."""
        return self.front if len(self.objectives) > 1 else self.front[:1]

    @property
    def unreported(self) -> tuple[Trial, ...]:
        """Winners that have yet to be evaluated on fresh samples."""
        return tuple(trial for trial in self.winners if self.evaluates and not trial.fresh)

    def table(self) -> pa.Table:
        """One row a trial, by number: COLUMNS, a column for each axis, and one for each metric that some trial has;
        `fresh/...` are winners' objectives on samples that chose no trial.
        """
        metrics = sorted({name for trial in self.trials for name in trial.metrics})
        columns = {name: [getattr(trial, name) for trial in self.trials] for name in COLUMNS}
        columns |= {name: [trial.params.get(name) for trial in self.trials] for name in self.axes}
        columns |= {name: [trial.metrics.get(name) for trial in self.trials] for name in metrics}
        fresh = [o.metric for o in self.objectives if any(o.metric in trial.fresh for trial in self.trials)]
        columns |= {f"fresh/{name}": [trial.fresh.get(name) for trial in self.trials] for name in fresh}
        return pa.table(columns)


class SweepFolder:
    """The files of one sweep. One process writes, any number read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether a sweep has been begun here."""
        return (self.path / "sweep.json").is_file()

    def write_header(self, sweep: Sweep) -> None:
        """Say what is searched; the trials of `sweep` are not written."""
        content = {name: getattr(sweep, name) for name in ("id", "name", "model", "planned", "evaluates", "repeated")}
        content |= {"axes": dict(sweep.axes), "objectives": [o.model_dump() for o in sweep.objectives]}
        _write(self.path / "sweep.json", content)

    def write(self, trial: Trial) -> None:
        """Store the trial's present state."""
        _write(self.path / "trials" / f"{trial.id}.json", asdict(trial))

    def trials(self) -> tuple[Trial, ...]:
        """All trials by number, but for those whose file cannot be read: they are named in a warning."""
        trials = filter(None, map(_read_trial, (self.path / "trials").glob("*.json")))
        return tuple(sorted(trials, key=lambda trial: trial.number))

    def read(self) -> Sweep:
        """The sweep as it is now. Raises FileNotFoundError where there is none, UserError for a damaged header."""
        path = self.path / "sweep.json"
        text = path.read_bytes()
        try:
            content = json.loads(text)
            objectives = tuple(Objective(**objective) for objective in content.pop("objectives"))
            repeated = tuple(content.pop("repeated", ()))
            return Sweep(**content, objectives=objectives, repeated=repeated, trials=self.trials())
        except MISSHAPEN as error:
            raise UserError(
                f"{path} is damaged ({error}). `indexmem sweep` of its spec writes it anew; its trials are files of "
                "their own."
            ) from None


def read_sweeps(root: Path, name: str | None = None) -> list[Sweep]:
    """The sweeps under a run root, those of a spec's `name` alone if given; the one begun last comes first.

    A damaged one is named in a warning and left out.
    """
    headers = sorted((root / "sweeps").glob("*/sweep.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    sweeps = []
    for header in headers:
        try:
            sweeps.append(SweepFolder(header.parent).read())
        except UserError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return [sweep for sweep in sweeps if name is None or sweep.name == name]


def _read_trial(path: Path) -> Trial | None:
    """What was written of a trial, without what a later version may have added; None where that cannot be read."""
    known = {item.name for item in fields(Trial)}
    text = path.read_bytes()
    try:
        content = {name: value for name, value in json.loads(text).items() if name in known}
        sequences = {name: tuple(content.get(name, ())) for name in ("curve", "cell_ids", "fresh_cell_ids")}
        spreads = {name: _read_spreads(content.get(name, {})) for name in ("spread", "fresh_spread")}
        return Trial(**content | sequences | spreads)
    except MISSHAPEN as error:
        message = (
            f"Left out {path}: damaged ({error}). The next `indexmem sweep` of its spec tries another in its place."
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None


def _read_spreads(content: Mapping[str, Any]) -> dict[str, Spread]:
    return {metric: Spread(one["low"], one["high"], tuple(one["units"])) for metric, one in content.items()}


def setting_text(value: Any) -> str:
    """A setting with at most four digits."""
    return f"{value:.4g}" if type(value) is float else str(value)


def spread_text(value: float, spread: Spread | None) -> str:
    """'0.62 [0.51, 0.71]', or the value alone."""
    return f"{value:.4g}" + (f" [{spread.low:.3g}, {spread.high:.3g}]" if spread is not None else "")


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=1, allow_nan=False))
