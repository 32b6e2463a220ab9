"""The section `sweep` of a spec: which settings vary, how they are searched, what is wanted.

An axis lists the values that a setting takes, or names the range that they are drawn from:

    [4, 8, 16]                             these values
    {low: 1.0e-4, high: 1.0e-2, log: true} any number in between, evenly on a logarithmic scale
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    model_validator,
)

from indexmem.config.section import Section

AXIS_EXAMPLES = "[4, 8, 16] or {low: 1.0e-4, high: 1.0e-2, log: true}"
RANGE_KEYS = {"low", "high", "log"}


@dataclass(frozen=True)
class Axis:
    """A list of `values`, or a range from `low` to `high`, both included."""

    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False

    @classmethod
    def parse(cls, setting: object) -> Axis:
        """Read what a spec says. Raises ValueError with what is wrong and an example."""
        if isinstance(setting, Axis):
            return setting
        if isinstance(setting, Mapping):
            return cls._range(setting)
        if not isinstance(setting, (list, tuple)) or not setting:
            raise ValueError(f"no axis; expected {AXIS_EXAMPLES}")
        odd = [value for value in setting if not _json_like(value)]
        if odd:
            raise ValueError(f"lists {odd[0]!r}; values are numbers, texts, true, false, null and lists of these")
        twice = [value for index, value in enumerate(setting) if value in setting[:index]]
        if twice:
            raise ValueError(f"lists {twice[0]!r} twice")
        return cls(values=tuple(setting))

    @classmethod
    def _range(cls, setting: Mapping[str, Any]) -> Axis:
        if unknown := set(setting) - RANGE_KEYS:
            raise ValueError(
                f"a range has low, high and log, not {', '.join(sorted(map(str, unknown)))}: {AXIS_EXAMPLES}"
            )
        try:
            low, high = (_number(setting[end]) for end in ("low", "high"))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"a range needs two numbers, low and high: {AXIS_EXAMPLES}") from None
        log = setting.get("log", False)
        if not isinstance(log, bool):
            raise ValueError(f"log is true or false, not {log!r}")
        if not low < high:
            raise ValueError(f"low={low} is not below high={high}")
        if log and low <= 0:
            raise ValueError(f"a logarithmic range starts above 0, not at low={low}")
        return cls(low=low, high=high, log=log)

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of a range."""
        assert self.low is not None and self.high is not None, "not a range"
        return self.low, self.high

    def dump(self) -> Any:
        """As a spec writes it."""
        return {"low": self.low, "high": self.high, "log": self.log} if self.is_range else list(self.values)


def by_dotted_name(axes: object) -> object:
    """Axes written as nested sections, as overrides write them, under their dotted names; null takes one away."""
    if not isinstance(axes, Mapping):
        return axes
    return {name: setting for name, setting in _flat(axes).items() if setting is not None}


def _flat(axes: Mapping[Any, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, setting in axes.items():
        if isinstance(setting, Mapping) and not RANGE_KEYS & set(setting):
            flat |= {f"{name}.{inner}": axis for inner, axis in _flat(setting).items()}
        else:
            flat[str(name)] = setting
    return flat


def _json_like(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _number(value: Any) -> float:
    """A number as it was written: whole ones stay whole. YAML reads 1e-4 as text."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    number = value if isinstance(value, int) else float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


Mode = Literal["min", "max"]
AxisSetting = Annotated[Axis, PlainValidator(Axis.parse), PlainSerializer(Axis.dump)]

DEFAULT_TRIALS = 20


class Objective(Section):
    """A metric that is to be small or large: `score`, or `{metric: score, mode: max}`. Scores are large by default."""

    metric: str
    mode: Mode

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        filled = {"metric": value} if isinstance(value, str) else value
        if isinstance(filled, dict) and "mode" not in filled:
            wanted = str(filled.get("metric", "")).split("/")[0]
            return {**filled, "mode": "max" if wanted == "score" else "min"}
        return filled

    @property
    def sign(self) -> float:
        """1 where small is good, -1 where large is: a value times this is always to be small."""
        return 1.0 if self.mode == "min" else -1.0


class AshaConfig(Section):
    """Asynchronous successive halving: at every rung only the best 1/`reduction` go on."""

    metric: str = Field("loss", description="training metric that decides, always to be small")
    grace: PositiveInt | None = Field(None, description="steps before the first rung; default: a ninth of the schedule")
    reduction: Annotated[int, Field(ge=2)] = Field(3, description="also the factor between rungs, in steps")


def _known_scheduler(value: Any) -> Any:
    if value == "pbt":
        raise ValueError(
            "population-based training changes settings within a trial, whose weights then belong to no one set of "
            "settings and cannot be trained again from a spec; use 'asha' or 'none'"
        )
    return value


class SweepConfig(Section):
    """A sweep of trials: each trains this spec's modules with other settings and evaluates the spec's grid."""

    axes: Annotated[dict[str, AxisSetting], BeforeValidator(by_dotted_name)] = Field(
        default_factory=dict,
        description="dotted name of a setting -> [values], {low, high, log}, or null: not this one",
    )
    search: Literal["grid", "random", "tpe"] = Field("tpe", description="tpe: Optuna, which learns from past trials")
    trials: PositiveInt | None = Field(None, description="default: all points of a grid, else 20; may be raised later")
    seed: int = 0
    samples_seed: int | None = Field(
        None,
        description="seed of the samples that trials are compared by; default: another one than grid.seed, on whose "
        "samples the winner is then reported",
    )
    scheduler: Annotated[Literal["none", "asha"], BeforeValidator(_known_scheduler)] = Field(
        "none", description="asha: ends trials early whose loss is behind"
    )
    asha: AshaConfig = AshaConfig()
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = Field(
        (Objective(metric="loss", mode="min"),),
        description="training metrics (loss), or means over the grid: score, bytes, ms, or score/<method>/<budget> ...",
    )
    max_concurrent: PositiveInt | None = Field(
        None, description="trials at once; default: as many as there is room for"
    )
    max_failures: NonNegativeInt = Field(3, description="workers or nodes that may die on one trial")

    @model_validator(mode="after")
    def _fits_together(self) -> SweepConfig:
        names = [objective.metric for objective in self.objectives]
        if len(set(names)) != len(names):
            raise ValueError(f"objectives lists a metric twice: {names}")
        if self.scheduler == "asha" and len(self.objectives) > 1:
            raise ValueError("scheduler 'asha' ends trials by one metric and so cuts off a Pareto front; use 'none'")
        ranges = [name for name, axis in self.axes.items() if axis.is_range]
        if self.search == "grid" and ranges:
            raise ValueError(f"search 'grid' needs a list of values for {', '.join(ranges)}; or use 'random' or 'tpe'")
        return self
