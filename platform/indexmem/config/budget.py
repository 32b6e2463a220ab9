"""How much of a context a cell may keep: a share, a number of tokens, or a number of bytes.

    0.75          three quarters are evicted
    512 tokens    kept per KV head, in the mean over heads and layers
    8 MiB         the whole compressed state of one context, over all layers: K and V and whatever else a method holds

Every kind has one text form, which rows, tables and figures show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["ratio", "tokens", "bytes"]
BUDGET_KINDS: tuple[Kind, ...] = ("ratio", "tokens", "bytes")  # in the order in which they are shown

PHRASES: Mapping[Kind, str] = MappingProxyType({"ratio": "evicted", "tokens": "kept", "bytes": "in all"})
UNITS = MappingProxyType(
    {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6, "KiB": 2**10, "kB": 10**3, "B": 1}
)  # from the largest to the smallest
_BY_LOWER_CASE = MappingProxyType({unit.lower(): size for unit, size in UNITS.items()})
_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*(%|[a-z]*)\s*", re.IGNORECASE)
MOST = 10**15  # of tokens or bytes: petabytes
EXAMPLES = "0.75 (evicted share), '512 tokens' or '8 MiB'"


@dataclass(frozen=True)
class Budget:
    """A budget. Equal ones are written alike, and `Budget.parse(str(budget)) == budget`."""

    kind: Kind
    amount: float  # evicted share in [0, 1); otherwise a whole number, 1 or more

    @classmethod
    def parse(cls, value: object) -> Budget:
        """Read what a spec or a command line says. Raises ValueError with what is wrong and an example."""
        if isinstance(value, Budget):
            return value
        found = _TEXT.fullmatch(str(value))
        if found is None or isinstance(value, bool):
            raise ValueError(f"no budget; expected {EXAMPLES}")
        number, unit = _decimal(found[1] + (found[2] or "")), found[3].lower()
        if unit == "%":
            return cls.of_ratio(float(number / 100))
        if not unit:
            return cls.of_ratio(float(number))
        if unit in ("token", "tokens"):
            return cls("tokens", _whole(number, exact=True))
        if unit not in _BY_LOWER_CASE:
            raise ValueError(f"unknown unit '{found[3]}'; use tokens, % or one of {', '.join(UNITS)}")
        return cls("bytes", _whole(number * _BY_LOWER_CASE[unit], exact=False))

    @classmethod
    def of_ratio(cls, ratio: float) -> Budget:
        """The budget that evicts this share. Raises ValueError outside [0, 1)."""
        if not 0 <= ratio < 1:
            raise ValueError(f"a share that is evicted lies in [0, 1); expected {EXAMPLES}")
        return cls("ratio", float(ratio))

    @property
    def ratio(self) -> float | None:
        """The requested evicted share; None for budgets that do not request one."""
        return self.amount if self.kind == "ratio" else None

    @property
    def identity(self) -> dict[str, Any]:
        """JSON-like content for hashes. That of ratios is older than the other kinds and must not change."""
        return {"ratio": self.amount} if self.kind == "ratio" else {"budget": [self.kind, self.amount]}

    @property
    def phrase(self) -> str:
        """'75% evicted', '512 tokens kept', '8 MiB in all'."""
        return f"{self} {PHRASES[self.kind]}"

    def __str__(self) -> str:
        """'75%', '512 tokens', '8 MiB'. Exact: different budgets have different texts."""
        if self.kind == "ratio":
            return f"{_plain(Decimal(repr(self.amount)) * 100)}%"
        if self.kind == "tokens":
            return "1 token" if self.amount == 1 else f"{self.amount:.0f} tokens"
        return next(text for unit, size in UNITS.items() if (text := self._in_unit(unit, size)))

    def __lt__(self, other: Budget) -> bool:
        """Display order: kinds together, and within each what evicts less first."""
        return self._display_order < other._display_order

    @property
    def _display_order(self) -> tuple[int, float]:
        return BUDGET_KINDS.index(self.kind), self.amount if self.kind == "ratio" else -self.amount

    def _in_unit(self, unit: str, size: int) -> str | None:
        """The amount in a unit with at most three decimals; None if they cannot tell it."""
        value = round(Decimal(int(self.amount)) / size, 3)
        return f"{_plain(value)} {unit}" if value >= 1 and int(value * size) == self.amount else None


NOTHING_EVICTED = Budget("ratio", 0.0)  # that of the full cache


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:  # an exponent of twenty digits
        raise ValueError(f"no number that a budget can be; expected {EXAMPLES}") from None


def _whole(number: Decimal, exact: bool) -> int:
    """Bytes are rounded down, so that '0.7 GiB' can be said; there are no parts of tokens."""
    if number > MOST:
        raise ValueError(f"more than any cache holds ({MOST:.0e} tokens or bytes); expected {EXAMPLES}")
    if exact and number != int(number):
        raise ValueError(f"a number of tokens is whole; use '{max(1, int(number))} tokens'")
    if number < 1:
        raise ValueError(f"a budget of nothing; expected {EXAMPLES}")
    return int(number)


def _plain(number: Decimal) -> str:
    """Digits without an exponent or zeros at the end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
