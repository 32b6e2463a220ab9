"""Nights whose suites are grids without a model, on a real Ray. Scores are 0 or 1, and some waver from night to night.

As a script it runs one night, for tests that kill it:

    python null_night.py NIGHTLY_SPEC DATE ADDRESS SECONDS_A_SAMPLE
"""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import yaml
from grids import remaining
from null_grid import PROVENANCE, NullEvaluator, null_assignment, null_plan

from indexmem.evaluate.rows import ResultRow
from indexmem.evaluate.work import Assignment, Task
from indexmem.nightly.process import SOME_FAILED, Limits
from indexmem.nightly.steps import NightStep

DAMAGED_BUDGET = "75%"


def nightly_file(root: Path, samples: int, **sections: object) -> Path:
    """A nightly spec with one suite, `null`, of 2 benchmarks x 3 cells x `samples` samples."""
    benchmarks = ["null_a", "null_b"]
    grid = {"benchmarks": benchmarks, "samples": samples, "samples_per_batch": 10, "max_attempts": 8}
    (root / "null.yaml").write_text(yaml.safe_dump({"name": "null", "grid": grid}))
    suites = [{"name": "null", "spec": "null.yaml", "verbs": ["eval"]}]
    spec = {"suites": suites, "run": {"root": str(root / "runs")}, "tracking": {"enabled": False}} | sections
    path = root / "nightly.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def share(*words: object) -> float:
    """A number in [0, 1) that depends on nothing but the words."""
    return int(hashlib.sha256("/".join(map(str, words)).encode()).hexdigest()[:8], 16) / 2**32


@dataclass(frozen=True)
class WaveringEvaluator(NullEvaluator):
    """Seven of ten answers are right; a share `wavering` of them anew every night; `lost` are wrong at one budget."""

    wavering: float = 0.1
    lost: float = 0.0

    def evaluate(self, tasks: Sequence[Task]) -> tuple[list[ResultRow], list[ResultRow]]:
        rows, retention = super().evaluate(tasks)
        # The date alone: noise that depended on where a test runs would raise a false alarm now and then.
        night = Path(self.assignment.experiment.run.root).parent.name
        for row in rows:
            words = (row["cell_id"], row["sample_id"])
            wavers = share("wavers", *words) < self.wavering
            right = share(night, *words) < 0.5 if wavers else share(*words) < 0.7
            damaged = row["budget"] == DAMAGED_BUDGET and share("lost", *words) < self.lost
            row["score"] = float(right and not damaged)
        return rows, retention


@dataclass(frozen=True)
class WaveringLoad:
    seconds: float = 0.0
    calm: str | None = None
    lost: float = 0.0

    def __call__(self, assignment: Assignment) -> WaveringEvaluator:
        return WaveringEvaluator(assignment, self.seconds, self.calm, lost=self.lost)


@dataclass(frozen=True)
class RaySuite:
    """Runs a suite's grid on the Ray at `address`, or on the one that is connected."""

    load: WaveringLoad = WaveringLoad()
    address: str | None = None

    def __call__(self, step: NightStep, limits: Limits) -> int:
        from indexmem.cluster.connection import ray_cluster
        from indexmem.evaluate.fanout import evaluate_on_ray

        with ray_cluster(self.address) if self.address else nullcontext():
            plan = null_plan(step.experiment)
            progress = evaluate_on_ray(step.experiment, plan, PROVENANCE, lambda now: limits.tick(), self.load)
        return SOME_FAILED if progress.failed else 0


def in_process(step: NightStep, limits: Limits) -> int:
    """The same without Ray, in milliseconds."""
    plan = null_plan(step.experiment)
    evaluator = WaveringLoad()(null_assignment(step.experiment))
    for benchmark in plan.samples:
        tasks = [task for task in remaining(plan) if task.sample.benchmark == benchmark]
        plan.store.append(evaluator.evaluate(tasks)[0], plan.partition(benchmark))
    return 0


def main(spec: str, date: str, address: str, seconds: str) -> int:
    from indexmem.commands.nightly import run_night
    from indexmem.config.nightly import load_nightly

    suite = RaySuite(WaveringLoad(float(seconds), str(Path(spec).parent / "calm")), address)
    return run_night(load_nightly(spec), dt.date.fromisoformat(date), execute=suite)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
