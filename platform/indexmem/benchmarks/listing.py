"""The benchmarks as a table for the command line."""

from __future__ import annotations

import inspect

from indexmem.benchmarks.registry import BENCHMARKS
from indexmem.plugins.listing import OURS, Listed, offered, table
from indexmem.plugins.load import HOW


def benchmark_listing() -> str:
    """One line for each benchmark or suite: name, where it comes from, settings."""
    rows: list[Listed] = [(name, OURS, _settings(factory)) for name, factory in BENCHMARKS.items()]
    rows += [(name, origin, said) for name, said, origin in offered("benchmarks", list(BENCHMARKS))]
    return "\n".join([table(rows), "", HOW])


def _settings(factory: object) -> str:
    assert callable(factory)
    parameters = inspect.signature(factory).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
