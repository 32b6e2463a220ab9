"""The benchmarks as a table for the command line, and what each of them is, needs and is known for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.resources import files

import yaml

from indexmem.benchmarks.registry import BENCHMARKS
from indexmem.plugins.listing import OURS, Listed, offered, table
from indexmem.plugins.load import HOW

ABOUT = (
    "{names}\n    {tasks}\n    languages: {languages}   licence: {licence}   needs: {needs}\n    reported: {reported}"
)


def benchmark_listing() -> str:
    """What each family of ours is, then the settings of all names and what packages offer."""
    about = [ABOUT.format(names=names, **said) for names, said in told().items()]
    rows: list[Listed] = [(name, OURS, _settings(factory)) for name, factory in BENCHMARKS.items()]
    rows += [(name, origin, said) for name, said, origin in offered("benchmarks", list(BENCHMARKS))]
    return "\n".join([*about, "", "Settings, and where each comes from:", "", table(rows), "", HOW])


def told() -> dict[str, dict[str, str]]:
    """What is said in each entry of about.yaml, by the names that it is about."""
    text = files("indexmem.benchmarks").joinpath("about.yaml").read_text(encoding="utf-8")
    return {str(names): dict(said) for names, said in yaml.safe_load(text).items()}


def entries_of(name: str) -> Iterator[str]:
    """The entries of about.yaml that tell of a benchmark."""
    for names in told():
        if any(fnmatchcase(name, pattern) for pattern in names.split(", ")):
            yield names


def _settings(factory: object) -> str:
    assert callable(factory)
    parameters = inspect.signature(factory).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
