"""A grid without a model: answers are a function of (cell, sample), and take as long as one likes.

As a script it is the driver of such a grid, for tests that kill drivers:

    python null_grid.py ROOT ADDRESS|local SECONDS_A_SAMPLE [key=value ...]
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import with_overrides
from indexmem.config.schema import BenchmarkConfig, Experiment, GridConfig, MethodConfig, RunConfig
from indexmem.config.spec import content_hash
from indexmem.evaluate.rows import ResultRow, base_row
from indexmem.evaluate.work import Assignment, GridCell, Task, packed_samples
from indexmem.results.schema import OK, SCHEMA_VERSION

PROVENANCE = {"git_commit": "c0ffee", "versions": {"python": "3"}, "host": "test"}
MODEL = "0123456789abcdef"
METHOD = MethodConfig(name="null")
BENCHMARKS = ("null_a", "null_b")
RATIOS = (0.25, 0.5, 0.75)


def null_spec(root: Path, *overrides: str) -> Experiment:
    """2 benchmarks x 3 cells x 300 samples, in units of 2 samples."""
    benchmarks = tuple(BenchmarkConfig(name=name) for name in BENCHMARKS)
    grid = GridConfig(benchmarks=benchmarks, samples=300, samples_per_batch=2)
    return with_overrides(Experiment(name="null", grid=grid, run=RunConfig(root=str(root))), list(overrides))


def null_names(spec: Experiment) -> list[str]:
    return [benchmark.name for benchmark in spec.grid.benchmarks]


def null_cells(spec: Experiment) -> tuple[GridCell, ...]:
    return tuple(
        GridCell(
            content_hash([benchmark, ratio]), METHOD, Budget.of_ratio(ratio), benchmark, content_hash(benchmark), ""
        )
        for benchmark in null_names(spec)
        for ratio in RATIOS
    )


def null_samples(spec: Experiment) -> dict[str, tuple[Sample, ...]]:
    return {
        benchmark: tuple(
            Sample(f"{benchmark}/{index}", benchmark, f"context {index}", "question", "", ("answer",), 8)
            for index in range(spec.grid.samples)
        )
        for benchmark in null_names(spec)
    }


def null_assignment(spec: Experiment) -> Assignment:
    cells = null_cells(spec)
    return Assignment(
        spec,
        {METHOD.label: METHOD},
        {name: tuple(cell for cell in cells if cell.benchmark == name) for name in null_names(spec)},
        {name: packed_samples(samples) for name, samples in null_samples(spec).items()},
        MODEL,
        None,
        PROVENANCE,
    )


def null_plan(spec: Experiment):
    from indexmem.config.spec import run_root
    from indexmem.evaluate.grid import GridPlan
    from indexmem.results.store import RowStore

    store = RowStore(run_root(spec) / "results")
    return GridPlan(None, MODEL, {METHOD.label: METHOD}, null_cells(spec), null_samples(spec), store, None)


def answer(sample: Sample, cell: GridCell) -> tuple[str, float]:
    digest = hashlib.sha256(f"{cell.id}/{sample.id}".encode()).hexdigest()
    return digest, int(digest[:4], 16) / 0xFFFF


@dataclass(frozen=True)
class NullEvaluator:
    """`seconds` for each sample, until the file `calm` exists."""

    assignment: Assignment
    seconds: float = 0.0
    calm: str | None = None

    def evaluate(self, tasks: Sequence[Task]) -> tuple[list[ResultRow], list[ResultRow]]:
        if self.calm is None or not Path(self.calm).exists():
            time.sleep(self.seconds * len(tasks))
        rows, retention = [], []
        for task in tasks:
            for cell in task.cells:
                prediction, score = answer(task.sample, cell)
                known = base_row(self.assignment.experiment, task.sample, cell, MODEL, PROVENANCE)
                rows.append(known | {"prediction": prediction, "score": score, "status": OK, "device": "cpu"})
                if task.keep_retention:
                    key = {"schema_version": SCHEMA_VERSION, "cell_id": cell.id, "sample_id": task.sample.id}
                    kept = {"repeat": 0, "question": "question", "tokens": ["context"], "retention": [score]}
                    kept |= {"kept_heads": [b"\1"], "kv_heads": 1}
                    retention.append(key | kept)
        return rows, retention


@dataclass(frozen=True)
class NullLoad:
    seconds: float = 0.0
    calm: str | None = None

    def __call__(self, assignment: Assignment) -> NullEvaluator:
        return NullEvaluator(assignment, self.seconds, self.calm)


def main(root: str, address: str, seconds: str, *overrides: str) -> int:
    from indexmem.cluster.connection import ray_cluster
    from indexmem.evaluate.fanout import evaluate_on_ray
    from indexmem.progress.view import LogLines, say

    spec = null_spec(Path(root), *overrides)
    load = NullLoad(float(seconds), str(Path(root) / "calm"))
    meter = LogLines(say, 1.0)
    try:
        with ray_cluster(None if address == "local" else address, cpus=2):
            progress = evaluate_on_ray(spec, null_plan(spec), PROVENANCE, lambda now: meter(now.status()), load)
    except KeyboardInterrupt:
        return 130
    say(f"ended: {progress.line()}")
    if progress.stopped_by is not None:
        return 128 + progress.stopped_by
    return 1 if progress.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
