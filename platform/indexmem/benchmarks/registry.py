"""Every benchmark by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from indexmem.benchmarks.base import Benchmark
from indexmem.benchmarks.ruler.niah import NIAH_TASKS
from indexmem.errors import UserError

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType({benchmark.name: benchmark for benchmark in NIAH_TASKS})


def get_benchmark(name: str) -> Benchmark:
    """The benchmark called `name`. Raises UserError that names the nearest one and all of them."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    nearest = difflib.get_close_matches(name, BENCHMARKS, n=1)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    raise UserError(f"No benchmark is called '{name}'.{hint} Benchmarks: {', '.join(BENCHMARKS)}.")
