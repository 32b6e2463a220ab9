"""Packages of somebody's own that a job brings along, since the nodes may not have them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution, packages_distributions, requires
from pathlib import Path

from indexmem.errors import UserError
from indexmem.plugins.load import Found

COMPILED = (".so", ".pyd", ".dylib")


def packages_of(found: Iterable[Found]) -> tuple[Path, ...]:
    """Folders (or single files) of the packages that these come from, as Ray's `py_modules` take them.

    The metadata of an installed one goes with it, so that the job knows its entry points. What indexmem itself needs is
    on the nodes already. Raises UserError for a package with compiled parts.
    """
    names = sorted({each.reference.package for each in found if not each.reference.in_file})
    return tuple(path for name in names for path in _package(name))


def _package(name: str) -> Iterator[Path]:
    homes = packages_distributions().get(name, [])
    if any(_same(home, text) for home in homes for text in ("indexmem", *(requires("indexmem") or []))):
        return
    module = sys.modules[name]
    places = [Path(place) for place in getattr(module, "__path__", [])] or [Path(str(module.__file__))]
    for place in places:
        compiled = [path for path in place.rglob("*") if path.suffix in COMPILED] if place.is_dir() else []
        if compiled:
            raise UserError(
                f"The package '{name}' has compiled parts ({compiled[0].name}), which fit one kind of machine. Install "
                "it on the nodes, with indexmem, and use --code installed."
            )
        yield place
    for home in homes:
        records = [file for file in distribution(home).files or () if file.name == "METADATA"]
        yield from (Path(str(file.locate())).parent for file in records)


def _same(home: str, requirement: str) -> bool:
    """Whether a requirement such as 'kvpress==0.5.5; extra' is of the distribution `home`."""
    name = requirement
    for stop in " ;=<>!~[(":
        name = name.partition(stop)[0]
    return _normal(name) == _normal(home)


def _normal(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")
