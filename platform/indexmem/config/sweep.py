"""The section `sweep` of a spec: which settings vary, how they are searched, what is wanted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from indexmem.config.axis import Axis, by_dotted_name
from indexmem.config.section import Section

Mode = Literal["min", "max"]
AxisSetting = Annotated[Axis, PlainValidator(Axis.parse), PlainSerializer(Axis.dump)]
PositiveInt = Annotated[int, Field(gt=0)]

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
        default_factory=dict, description="dotted name of a setting -> [values] or {low, high, log}"
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
    max_failures: Annotated[int, Field(ge=0)] = Field(3, description="workers or nodes that may die on one trial")

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
