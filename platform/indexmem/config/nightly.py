"""The nightly spec: which suites run every night, when, at what cost, and what counts as a regression.

A suite is an ordinary spec with overrides and the verbs that are run on it. Nothing here reads the suites' specs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from indexmem.config.load import raw_spec, validate_as
from indexmem.config.naming import RunName
from indexmem.config.schema import Experiment, RunConfig, TrackingConfig
from indexmem.config.section import Section
from indexmem.files import expanded

Verb = Literal["distill", "sweep", "eval"]
Hours = Annotated[float, Field(gt=0)]
MODULES = "distill"  # folder of a night that its suites share
LAST_LOSSES = "losses.json"  # in a suite's run root: what its training ended with


class SuiteConfig(Section):
    """One spec that is run every night, in a folder of its own."""

    name: RunName
    spec: str = Field(description="a spec file; relative to the nightly spec")
    verbs: tuple[Verb, ...] = Field(("distill", "eval"), description="run in this order")
    overrides: tuple[str, ...] = Field((), description="for example 'grid.samples=20'")

    @model_validator(mode="after")
    def _does_something(self) -> SuiteConfig:
        if not self.verbs or len(set(self.verbs)) != len(self.verbs):
            raise ValueError("verbs lists each of distill, sweep and eval once at most, and one of them at least")
        if self.name == MODULES:
            raise ValueError(f"'{MODULES}' is the folder of the night's trained modules: choose another name")
        return self


class NightBudget(Section):
    """What a night may use before it ends early, restarts included. What is finished by then is compared."""

    wall_hours: Hours | None = Field(None, description="running time of all verbs together")
    gpu_hours: Hours | None = Field(None, description="running time of a verb times the GPUs that it may hold")


class CompareConfig(Section):
    """When a night is worse than those before it."""

    nights: Annotated[int, Field(ge=1)] = Field(5, description="earlier nights that are pooled as the reference")
    since: dt.date | None = Field(
        None, description="first night that may be a reference: set it to accept a change that is meant to stay"
    )
    coverage_since: dt.date | None = Field(
        None, description="first night whose cells and samples later ones must have: set it to accept lost coverage"
    )
    level: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.01, description="probability, at most, that a night in which nothing changed raises an alarm"
    )
    minimum_effect: Annotated[float, Field(ge=0, le=1)] = Field(
        0.02, description="smaller losses of mean score are no regression, however certain"
    )
    loss: Annotated[float, Field(gt=1)] = Field(1.1, description="factor in a training's loss that is a regression")
    slower: Annotated[float, Field(gt=1)] = Field(1.3, description="factor in time that is worth a warning")


class RetentionConfig(Section):
    """How many nights stay on disk. Verdicts and pages stay for ever, and so do nights that serve as reference."""

    rows: Annotated[int, Field(ge=1)] = Field(60, description="newest nights that keep their rows")
    modules: Annotated[int, Field(ge=1)] = Field(7, description="newest nights that keep their trained modules")

    @model_validator(mode="after")
    def _rows_outlive_modules(self) -> RetentionConfig:
        if self.modules > self.rows:
            raise ValueError("modules are kept for at most as many nights as rows")
        return self


class NightlySpec(Section):
    """What happens every night. `name` separates several nightly specs on one run root."""

    name: RunName = "nightly"
    cron: str = Field("0 2 * * *", description="minute, hour, day of month, month, day of week; once a day at most")
    timezone: str | None = Field(None, description="for example Europe/Berlin; default: that of the machine")
    suites: tuple[SuiteConfig, ...] = ()
    budget: NightBudget = NightBudget()
    compare: CompareConfig = CompareConfig()
    retention: RetentionConfig = RetentionConfig()
    url: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None, description="where the folder of the nights is served, for links in messages"
    )
    tracking: TrackingConfig = TrackingConfig()
    run: RunConfig = RunConfig()

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                ZoneInfo(value)
            except (KeyError, ValueError, OSError):
                raise ValueError("no such time zone; expected a name such as Europe/Berlin or UTC") from None
        return value

    @model_validator(mode="after")
    def _distinct_suites(self) -> NightlySpec:
        if not self.suites:
            raise ValueError("suites is empty. Example: suites='[{name: smoke, spec: smoke.yaml}]'")
        names = [suite.name for suite in self.suites]
        if len(set(names)) != len(names):
            raise ValueError(f"two suites have the same name: {', '.join(names)}")
        return self

    @property
    def place(self) -> Experiment:
        """An experiment with this spec's run root and MLflow store, and nothing else of it."""
        return Experiment(name=self.name, tracking=self.tracking, run=self.run)


def load_nightly(path: str | Path, overrides: Sequence[str] = ()) -> NightlySpec:
    """Read a nightly spec; its suites' paths become absolute. Raises UserError like `config.load.load`."""
    spec = validate_as(NightlySpec, raw_spec(path, overrides), str(path))
    folder = expanded(path).absolute().parent
    suites = tuple(suite.model_copy(update={"spec": str(folder / suite.spec)}) for suite in spec.suites)
    return spec.model_copy(update={"suites": suites})


def is_nightly(path: str | Path) -> bool:
    """Whether a spec file is one of nights: only these have suites."""
    return "suites" in raw_spec(path, ())
