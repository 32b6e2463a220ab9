"""Benchmarks and suites by name.

A family of benchmarks is a mapping from names to factories. A factory takes the settings that a spec may give under
`params`, as keyword arguments with types and defaults, and returns one benchmark, or all of a suite.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError, validate_call

from indexmem.benchmarks.base import Benchmark
from indexmem.benchmarks.continuation import continuation
from indexmem.benchmarks.foreign import foreign_factory
from indexmem.benchmarks.instructions.suite import instructions, leakage
from indexmem.benchmarks.longbench.suite import LONGBENCH
from indexmem.benchmarks.maths.suite import aime25, math500
from indexmem.benchmarks.niah_map import niah
from indexmem.benchmarks.own.suite import jsonl
from indexmem.benchmarks.published.helmet import helmet_recall
from indexmem.benchmarks.published.infinitebench import infinitebench
from indexmem.benchmarks.published.longbench_v2 import longbench_v2
from indexmem.benchmarks.published.longproc import longproc
from indexmem.benchmarks.published.mmlu_pro import mmlu_pro
from indexmem.benchmarks.published.mrcr import mrcr
from indexmem.benchmarks.ruler.niah import niah_questions
from indexmem.benchmarks.ruler.qa import qa_1, qa_2
from indexmem.benchmarks.ruler.suite import FIXED_TASKS, ruler, ruler_dataset
from indexmem.benchmarks.scbench.suite import scbench
from indexmem.config.reference import without_folders
from indexmem.config.schema import MEAN, BenchmarkConfig
from indexmem.errors import UserError
from indexmem.plugins.load import unknown_name

BenchmarkFactory = Callable[..., Sequence[Benchmark]]


def fixed(*benchmarks: Benchmark) -> BenchmarkFactory:
    """A factory without settings."""
    return lambda: benchmarks


BENCHMARKS: Mapping[str, BenchmarkFactory] = MappingProxyType(
    {task.name: fixed(task) for task in FIXED_TASKS}
    | {"qa_1": qa_1, "qa_2": qa_2, "ruler": ruler, "ruler_dataset": ruler_dataset}
    | {
        "niah": niah,
        "niah_questions": niah_questions,
        "scbench": scbench,
        "longbench_v2": longbench_v2,
        "infinitebench": infinitebench,
        "mrcr": mrcr,
        "helmet_recall": helmet_recall,
        "longproc": longproc,
        "mmlu_pro": mmlu_pro,
        "aime25": aime25,
        "math500": math500,
        "jsonl": jsonl,
        "fidelity": continuation,
        "instructions": instructions,
        "leakage": leakage,
    }
    | dict(LONGBENCH)
)


def make_benchmarks(configs: Iterable[BenchmarkConfig]) -> tuple[Benchmark, ...]:
    """All benchmarks that the entries of a spec name, suites as their members.

    Raises UserError for an unknown name (with the nearest one), unknown or wrong settings, a benchmark that comes
    twice, and one whose name stands for the mean over benchmarks.
    """
    made = tuple(benchmark for config in configs for benchmark in _make(config))
    twice = [name for name, count in Counter(benchmark.name for benchmark in made).items() if count > 1]
    if twice:
        raise UserError(f"grid.benchmarks gives {', '.join(twice)} more than once. List each benchmark or its suite.")
    if any(benchmark.name == MEAN for benchmark in made):
        raise UserError(
            f"No benchmark can be called '{MEAN}': tables and grid.full_cache_floor mean all benchmarks by it. Give it "
            "another name, for example {name: jsonl, params: {path: FILE, name: averages}}."
        )
    return made


def get_benchmark(name: str) -> Benchmark:
    """The one benchmark called `name`, with default settings. Raises UserError as `make_benchmarks` does."""
    (benchmark,) = make_benchmarks([BenchmarkConfig(name=name)])
    return benchmark


def _make(config: BenchmarkConfig) -> Sequence[Benchmark]:
    factory = BENCHMARKS.get(config.name) or foreign_factory(config.name)
    if factory is None:
        raise unknown_name("benchmarks", "benchmark", config.name, BENCHMARKS)
    try:
        return validate_call(factory)(**config.params)
    except ValidationError as error:
        settings = ", ".join(map(str, inspect.signature(factory, eval_str=True).parameters.values())) or "none"
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(
            f"Benchmark '{without_folders(config.name)}' cannot take these params: {problems}. Settings: {settings}."
        ) from None
