"""RULER's 13 tasks, generated or from a data set, as the registry knows them."""

from __future__ import annotations

from collections.abc import Sequence

from indexmem.benchmarks.base import Benchmark
from indexmem.benchmarks.ruler.common_words import CommonWords
from indexmem.benchmarks.ruler.frequent_words import FrequentWords
from indexmem.benchmarks.ruler.hub import RulerDatasetTask, RulerRows
from indexmem.benchmarks.ruler.niah import NIAH_TASKS
from indexmem.benchmarks.ruler.qa import qa_1, qa_2
from indexmem.benchmarks.ruler.variables import VariableTracking

FIXED_TASKS = (
    *NIAH_TASKS,
    VariableTracking(name="vt"),
    CommonWords(name="cwe"),
    FrequentWords(name="fwe"),
)


def ruler(*, squad: str | None = None, hotpotqa: str | None = None) -> Sequence[Benchmark]:
    """All 13 tasks; `squad` and `hotpotqa` are local files for qa_1 and qa_2, which are generated without them."""
    return (*FIXED_TASKS, *qa_1(squad=squad), *qa_2(hotpotqa=hotpotqa))


def ruler_dataset(*, path: str = "simonjegou/ruler", length: int = 4096) -> Sequence[Benchmark]:
    """All 13 tasks from a data set in the layout of `simonjegou/ruler`: a hub id, a folder or a file."""
    rows = RulerRows(path, length)
    return tuple(
        RulerDatasetTask(
            name=f"ruler_dataset_{task.name}", task=task.name, rows=rows, max_new_tokens=task.max_new_tokens
        )
        for task in ruler()
    )
