"""Names of somebody's own code in a spec: `my_pkg.methods:KeyVariance`, `./my_methods.py:KeyVariance`, entry points.

Only names are read here. `indexmem.plugins` imports what they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import PurePath
from typing import Any, Literal

PluginKind = Literal["methods", "benchmarks", "memories", "scorers", "texts"]

_NAME = r"[^\W\d]\w*"
_MODULE = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME})")
_FILE = re.compile(rf"(.+\.py):({_NAME})(\+memory)?", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """`place:attribute`. The place is a module, or a file that ends in .py."""

    place: str
    attribute: str

    @classmethod
    def parse(cls, name: str) -> Reference | None:
        """None for a name that is no reference."""
        found = _FILE.fullmatch(name) or _MODULE.fullmatch(name)
        return cls(found[1], found[2]) if found else None

    @property
    def in_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def package(self) -> str:
        """The importable package that a module lies in."""
        return self.place.partition(".")[0]


def with_files(value: Any, move: Callable[[str], str]) -> Any:
    """A JSON-like value with `move` applied to the file of each reference to one, anywhere in it."""
    if isinstance(value, Mapping):
        return {key: with_files(item, move) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_files(item, move) for item in value)
    found = _FILE.fullmatch(value) if isinstance(value, str) else None
    return f"{move(found[1])}:{found[2]}{found[3] or ''}" if found else value


def without_folders(value: Any) -> Any:
    """`value` as tables and identities say it: wherever a file lies, it has the same name."""
    return with_files(value, lambda file: PurePath(file).name)


def entry_points_of(kind: PluginKind) -> dict[str, EntryPoint]:
    """What installed packages offer under `indexmem.<kind>`, by name."""
    return {point.name: point for point in entry_points(group=f"indexmem.{kind}")}
