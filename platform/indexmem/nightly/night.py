"""Nights on disk: <run root>/nightly/<name>/<date>/, with a run root of its own for each suite, a record and a verdict.

A night measures the code of that night, so it shares no rows and no trained modules with others. Within a night equal
trainings are shared by all suites.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from indexmem.config.nightly import MODULES, CompareConfig, NightlySpec, RetentionConfig
from indexmem.config.section import Section
from indexmem.config.spec import run_root
from indexmem.files import write_whole
from indexmem.nightly.verdict import NightVerdict

Stored = TypeVar("Stored", bound=BaseModel)
StepStatus = Literal["done", "failed", "unfinished"]


class StepRecord(Section):
    """What became of one verb of one suite. Only one that is done is not tried again."""

    status: StepStatus = "unfinished"
    exit_code: int | None = Field(None, description="negative: the signal that ended it")
    seconds: float = Field(0.0, description="over all attempts")
    gpu_seconds: float = Field(0.0, description="seconds times the GPUs that it might hold")


class NightRecord(Section):
    """How far a night is, by the names of its steps: '<suite>/<verb>'."""

    steps: Mapping[str, StepRecord] = {}

    def of(self, step: str) -> StepRecord:
        return self.steps.get(step, StepRecord())

    def updated(self, step: str, record: StepRecord) -> NightRecord:
        return NightRecord(steps={**self.steps, step: record})

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps.values())

    @property
    def gpu_seconds(self) -> float:
        return sum(step.gpu_seconds for step in self.steps.values())


@dataclass(frozen=True, order=True)
class Night:
    """One night's folder, which may not exist yet."""

    date: dt.date
    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def note(self) -> Path:
        return self.folder / "report.md"

    @property
    def verdict_file(self) -> Path:
        return self.folder / "verdict.json"

    @property
    def has_rows(self) -> bool:
        return any(self.folder.glob("*/results/rows"))

    def suite(self, name: str) -> Path:
        """Run root of a suite."""
        return self.folder / name

    def make_suite(self, name: str) -> Path:
        """Make the run root of a suite, with a link to the night's trained modules, which its suites share."""
        folder = self.suite(name)
        folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MODULES).mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / MODULES).symlink_to(f"../{MODULES}")
        return folder

    def record(self) -> NightRecord:
        return _read(NightRecord, self.folder / "record.json") or NightRecord()

    def save(self, record: NightRecord) -> None:
        write_whole(self.folder / "record.json", record.model_dump_json(indent=1))

    def verdict(self) -> NightVerdict | None:
        """None until the night is judged."""
        return _read(NightVerdict, self.verdict_file)

    def forget_modules(self) -> None:
        shutil.rmtree(self.folder / MODULES, ignore_errors=True)

    def forget_rows(self) -> None:
        """Only the small files stay: record, verdict and pages."""
        for folder in filter(Path.is_dir, self.folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def _read(kind: type[Stored], path: Path) -> Stored | None:
    """The stored record; None if the file is missing or damaged, and what it recorded is then done again."""
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        message = f"{path} is damaged ({error.errors()[0]['msg']}) and counts as missing."
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return None


@dataclass(frozen=True)
class Nights:
    """All nights of one nightly spec."""

    folder: Path

    @classmethod
    def of(cls, spec: NightlySpec) -> Nights:
        """Raises UserError when the run root is no folder."""
        return cls(run_root(spec.place) / "nightly" / spec.name)

    @property
    def leases(self) -> Path:
        """Folder of the lease on these nights: one process at a time works on any of them."""
        return self.folder / "leases"

    def night(self, date: dt.date) -> Night:
        return Night(date, self.folder / date.isoformat())

    def all(self) -> list[Night]:
        """The nights that have begun, newest first."""
        nights = []
        for folder in self.folder.glob("*-*-*"):
            with contextlib.suppress(ValueError):
                nights.append(self.night(dt.date.fromisoformat(folder.name)))
        return sorted(nights, reverse=True)

    def verdicts(self, date: dt.date, most: int) -> list[NightVerdict]:
        """Of the newest judged nights before `date`, oldest first."""
        judged = (verdict for night in self.all() if night.date < date and (verdict := night.verdict()))
        return list(islice(judged, most))[::-1]

    def reference(self, date: dt.date, config: CompareConfig, most: int | None = None) -> list[Night]:
        """The nights that this one's scores are compared with, newest first; up to `most`, if that is given.

        A night with a regression is none: the alarm stays on until the loss is mended or accepted (`since`).
        """
        return list(islice(self._before(date, config.since, lambda verdict: verdict.regressed), most or config.nights))

    def whole(self, date: dt.date, config: CompareConfig) -> Night | None:
        """The newest earlier night that lacked nothing: what it asked, this one must ask."""
        first = max(filter(None, (config.since, config.coverage_since)), default=None)
        return next(self._before(date, first, lambda verdict: bool(verdict.lost)), None)

    def _before(self, date: dt.date, first: dt.date | None, alarmed: Callable[[NightVerdict], bool]) -> Iterator[Night]:
        """Nights from `first` on that left something to compare with and raised no such alarm; that of `first` itself
        is accepted by naming it.
        """
        for night in self.all():
            if (first or night.date) <= night.date < date and (verdict := night.verdict()) is not None:
                there = verdict.measured and (night.has_rows or not verdict.rows)
                if there and (night.date == first or not alarmed(verdict)):
                    yield night

    def forget(self, retention: RetentionConfig, kept: Sequence[Night]) -> None:
        """Delete rows and modules of nights that have had their time, except those in `kept`."""
        for place, night in enumerate(self.all()):
            if night in kept:
                continue
            if place >= retention.modules:
                night.forget_modules()
            if place >= retention.rows:
                night.forget_rows()
