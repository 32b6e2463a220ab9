"""What a sweep varies, checked against the schema: settings -> a trial's spec and its name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from indexmem.config.load import with_settings
from indexmem.config.schema import Experiment
from indexmem.config.section import Section
from indexmem.config.spec import OPERATIONAL, content_hash
from indexmem.config.sweep import Axis
from indexmem.errors import UserError

Params = Mapping[str, Any]  # dotted name -> value

# Other sections say where results go or how trials are measured, which must be alike for all of them.
SWEPT = ("model", "indexer", "memory", "target", "distill", "eviction")
FIXED = {f"distill.{name}" for name in (*OPERATIONAL, "workers")}
COMBINATIONS = 5_000  # checked at most; one takes about a millisecond


@dataclass(frozen=True)
class Space:
    """The axes of a spec's sweep."""

    experiment: Experiment
    axes: Mapping[str, Axis]
    whole: frozenset[str]  # ranges of settings that take whole numbers only
    levels: Mapping[str, tuple[Any, ...]]  # of each axis, settled: the listed values, or both ends

    @classmethod
    def of(cls, experiment: Experiment) -> Space:
        """Check every axis, every value in a list, both ends of every range, and combinations of these.

        Raises UserError that names the axis, what is wrong, and the nearest valid name.
        """
        axes = experiment.sweep.axes
        if not axes:
            raise UserError("sweep.axes is empty. Example: sweep.axes.distill.schedule.peak_lr='[1.0e-3, 3.0e-3]'")
        for name in axes:
            _check_name(experiment, name)
        ranges = [name for name, axis in axes.items() if axis.is_range]
        whole = frozenset(name for name in ranges if _whole_only(experiment, name, axes[name]))
        listed = {name: axis.ends if axis.is_range else axis.values for name, axis in axes.items()}
        first = {name: values[0] for name, values in listed.items()}
        levels = {
            name: tuple(_settled(experiment, first | {name: value})[name] for value in values)
            for name, values in listed.items()
        }
        for name, values in levels.items():
            if any(value in values[:index] for index, value in enumerate(values)):
                raise UserError(f"sweep.axes.{name} lists a value twice: {list(values)}")
        space = cls(experiment, axes, whole, levels)
        for params in itertools.islice(space.corners(), COMBINATIONS):
            space.spec(params)
        return space

    def spec(self, params: Params) -> Experiment:
        """The spec of a trial: the sweep's, with these settings. Raises UserError where they do not fit together."""
        return _spec(self.experiment, params)

    def settled(self, params: Params) -> dict[str, Any]:
        """The settings in the form that the schema gives them, so that equal ones are written alike."""
        return _settled(self.experiment, params)

    def corners(self) -> Iterator[dict[str, Any]]:
        """All combinations of listed values and ends of ranges: of lists alone, the points of a grid."""
        for values in itertools.product(*self.levels.values()):
            yield dict(zip(self.levels, values))

    def probes(self) -> Iterator[dict[str, Any]]:
        """The first corner, and what differs from it in one axis."""
        first = next(self.corners())
        yield first
        for name, levels in self.levels.items():
            yield from (first | {name: level} for level in levels[1:])

    @property
    def longest(self) -> int:
        """Training steps of the longest trial."""
        varies = any(name.startswith("distill.schedule.") for name in self.axes)
        specs = map(self.spec, itertools.islice(self.corners(), COMBINATIONS)) if varies else [self.experiment]
        return max(spec.distill.schedule.steps for spec in specs)

    @property
    def points(self) -> int | None:
        """How many points there are; None where some axis is a range of real numbers."""
        if any(axis.is_range and name not in self.whole for name, axis in self.axes.items()):
            return None
        return math.prod(
            int(levels[-1] - levels[0]) + 1 if name in self.whole else len(levels)
            for name, levels in self.levels.items()
        )


def trial_id(settled: Params) -> str:
    """Name of a trial: a hash of its settled settings."""
    return content_hash(dict(settled), 12)


def _spec(experiment: Experiment, params: Params) -> Experiment:
    setting = ", ".join(f"{name}={value}" for name, value in params.items())
    return with_settings(experiment, params, f"sweep.axes with {setting}")


def _settled(experiment: Experiment, params: Params) -> dict[str, Any]:
    spec = _spec(experiment, params).model_dump(mode="json")
    return {name: _at(spec, name) for name in params}


def _check_name(experiment: Experiment, name: str) -> None:
    section = name.split(".")[0]
    if section in type(experiment).model_fields and (section not in SWEPT or name in FIXED):
        raise UserError(
            f"sweep.axes: '{name}' says how trials are run or measured, which must be the same for all of them. "
            f"Axes are settings of {', '.join(SWEPT)}."
        )
    current = _at(experiment.model_dump(mode="json"), name)
    spec = with_settings(experiment, {name: current}, "sweep.axes")  # explains an unknown name
    setting: Any = spec
    for part in name.split("."):
        setting = getattr(setting, part)
    if isinstance(setting, Section):
        inside = ", ".join(f"{name}.{field}" for field in type(setting).model_fields)
        raise UserError(f"sweep.axes: '{name}' is a section. Name a setting: {inside}.")


def _whole_only(experiment: Experiment, name: str, axis: Axis) -> bool:
    """Whether the range is one of whole numbers: its ends are, and the setting refuses a fraction between them."""
    low, high = axis.ends
    if not (isinstance(low, int) and isinstance(high, int)):
        return False
    try:
        with_settings(experiment, {name: low + 0.5}, "sweep.axes")
    except UserError:
        return True
    return False


def _at(nested: Any, name: str) -> Any:
    """The value under a dotted name; None where there is none."""
    for part in name.split("."):
        nested = nested.get(part) if isinstance(nested, Mapping) else None
    return nested
