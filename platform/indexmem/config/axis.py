"""One axis of a sweep: the values that a setting takes, or the range that they are drawn from.

[4, 8, 16]                             these values
{low: 1.0e-4, high: 1.0e-2, log: true} any number in between, evenly on a logarithmic scale
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EXAMPLES = "[4, 8, 16] or {low: 1.0e-4, high: 1.0e-2, log: true}"
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
            raise ValueError(f"no axis; expected {EXAMPLES}")
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
            raise ValueError(f"a range has low, high and log, not {', '.join(sorted(map(str, unknown)))}: {EXAMPLES}")
        try:
            low, high = (_number(setting[end]) for end in ("low", "high"))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"a range needs two numbers, low and high: {EXAMPLES}") from None
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
    """Axes written as nested sections, as overrides write them, under their dotted names."""
    if not isinstance(axes, Mapping):
        return axes
    flat: dict[str, Any] = {}
    for name, setting in axes.items():
        if isinstance(setting, Mapping) and not RANGE_KEYS & set(setting):
            nested = by_dotted_name(setting)
            assert isinstance(nested, dict)
            flat |= {f"{name}.{inner}": axis for inner, axis in nested.items()}
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
