"""What a large grid costs apart from the model: planning, reading the store, storing, keeping actors busy.

    python tests/bench/fanout.py --out fanout.json [--cells 10000 --samples 500 --actors 8 --seconds 2]

The plan is that of a real spec on a tiny model. Actors hold no model: a unit, one sample in all its cells, takes a
fixed time and then gives rows as large as real ones, which are encoded and stored as always. An actor's time counts
from the moment it is ready until the last row is stored; `overhead` is what of it no unit took, over what units took.
Real units of so many rows take minutes: the shorter they are here, the harder for the driver.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import psutil
from fanout_load import PacedLoad, row_of
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cluster.connection import ray_cluster
from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.evaluate import fanout, grid
from indexmem.evaluate.crew import Crew, CrewReport, Member
from indexmem.evaluate.driver import assignment_of
from indexmem.evaluate.grid import GridPlan
from indexmem.results.parts import encoded
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.store import RowStore

PROVENANCE = {"git_commit": "c0ffee", "versions": {"python": "3", "torch": "2", "ray": "2"}, "host": "bench"}
BUDGETS = 40  # for each method
MiB = 2**20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="for a unit: one sample in all cells")
    return parser.parse_args()


class Results:
    """Measured values by name, printed as they come."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, name: str, value: float, unit: str) -> None:
        self.values[f"{name} [{unit}]"] = value
        print(f"{name:<64}{value:>12,.4g} {unit}", flush=True)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - started, "s")


@dataclass
class ActorTime:
    ready: float
    busy: float = 0.0
    units: int = 0


@dataclass
class Watch:
    """What the crew's members did, and what the driver weighed meanwhile."""

    times: dict[Member, ActorTime] = field(default_factory=dict)
    end: float = 0.0
    peak: int = 0

    def crew(self) -> type[Crew]:
        watch = self

        class WatchedCrew(Crew):
            def __exit__(self, *error: object) -> None:
                watch.end = time.monotonic()
                super().__exit__(*error)

            def _receive(self, reference: Any) -> CrewReport | None:
                member = self._calls[reference]
                report = super()._receive(reference)
                if member.state == "ready" and member not in watch.times:
                    watch.times[member] = ActorTime(time.monotonic())
                if report is not None and report.outcome is not None:
                    watch.times[member].busy += report.outcome.seconds
                    watch.times[member].units += 1
                return report

        return WatchedCrew

    def weigh(self, _: object = None) -> None:
        self.peak = max(self.peak, psutil.Process().memory_info().rss)


def spec_of(root: Path, cells: int, samples: int, actors: int) -> Experiment:
    """Random scores under many seeds: `cells` cells of one benchmark."""
    save_tiny_model(root / "model")
    (root / "text.txt").write_text(TEXT)
    methods = [{"name": "random", "params": {"seed": seed}} for seed in range(cells // BUDGETS)]
    text = str(root / "text.txt")
    return validate(
        {
            "name": "bench",
            "model": {"id": str(root / "model")},
            "grid": {
                "methods": methods,
                "ratios": [round((index + 1) / (BUDGETS + 2), 6) for index in range(BUDGETS)],
                "benchmarks": ["niah_single_1"],
                "length": 640,
                "samples": samples,
                "actors": actors,
                "haystack": text,
            },
            "run": {"root": str(root / "runs")},
        },
        "bench",
    )


def fill(plan: GridPlan, experiment: Experiment, first: int, last: int, results: Results | None = None) -> None:
    """Store rows of samples first..last-1 in all cells, a part for each sample."""
    (benchmark,) = plan.samples
    assignment = assignment_of(experiment, plan, PROVENANCE)
    tasks = [grid.Task(sample, plan.cells_of[benchmark]) for sample in plan.samples[benchmark][first:last]]
    rng = random.Random(0)
    rows = [row_of(assignment, tasks[0], cell, rng) for cell in tasks[0].cells]
    started = time.perf_counter()
    content = encoded(rows, ROW_SCHEMA)
    if results is not None:
        results.add(f"encode {len(rows):,} rows of a unit (in the actor)", time.perf_counter() - started, "s")
        results.add("  size", len(content) / MiB, "MiB")
    writing = 0.0
    for task in tasks:
        content = encoded([row | {"sample_id": task.sample.id} for row in rows], ROW_SCHEMA)
        started = time.perf_counter()
        plan.store.append_encoded(content, plan.partition(benchmark))
        writing += time.perf_counter() - started
    if results is not None:
        results.add("store them (in the driver, with fsync)", writing / len(tasks), "s")


def measure_plan(experiment: Experiment, results: Results) -> GridPlan:
    with results.timed("plan() altogether: spec to cells and samples"):
        plan = grid.plan(experiment)
    (benchmark,) = plan.samples
    build = plan.cells[0].benchmark_build
    checkpoints = dict.fromkeys(plan.methods, "")
    with results.timed(f"  of it: {len(plan.cells):,} cells and their ids"):
        grid._cells(experiment, plan.model_fingerprint, {benchmark: build}, checkpoints)
    with results.timed("what is missing, empty store"):
        plan.missing()
    half = len(plan.samples[benchmark]) // 2
    fill(plan, experiment, 0, half, results)
    with results.timed(f"what is missing, {half * len(plan.cells):,} rows stored"):
        missing = plan.missing()
    assert sum(int(mask.sum()) for mask in missing.values()) == plan.row_count - half * len(plan.cells)
    fill(plan, experiment, half, len(plan.samples[benchmark]))
    with results.timed(f"what is missing, all {plan.row_count:,} rows stored"):
        assert not any(mask.any() for mask in plan.missing().values())
    return plan


def measure_run(name: str, experiment: Experiment, plan: GridPlan, seconds: float, slow: int, results: Results) -> None:
    """One grid into a store of its own, `seconds` a unit; the first `slow` actors take three times as long."""
    with tempfile.TemporaryDirectory(prefix="fanout-") as folder:
        (Path(folder) / "actors").mkdir()
        experiment = experiment.model_copy(update={"run": experiment.run.model_copy(update={"root": folder})})
        plan = replace(plan, store=RowStore(Path(folder) / "results"))
        watch = Watch()
        watch.weigh()
        before, former = watch.peak, fanout.Crew
        fanout.Crew = watch.crew()  # type: ignore[misc]
        started = time.monotonic()
        try:
            load = PacedLoad(seconds, slow, str(Path(folder) / "actors"))
            progress = fanout.evaluate_on_ray(experiment, plan, PROVENANCE, watch.weigh, load)
        finally:
            fanout.Crew = former  # type: ignore[misc]
        end = time.monotonic()
        assert (progress.done, progress.failed) == (plan.row_count, 0)
        available = sum(watch.end - actor.ready for actor in watch.times.values())
        first = min(actor.ready for actor in watch.times.values())
        busy = sum(actor.busy for actor in watch.times.values())
        units = sum(actor.units for actor in watch.times.values())
        print(f"\n{name}: {plan.row_count:,} rows, {len(watch.times)} actors, {seconds:g} s a sample")
        results.add(f"{name}: wall time, with the start of the actors", end - started, "s")
        results.add(f"{name}: start, until the first actor is ready", first - started, "s")
        results.add(f"{name}: units", units, "")
        results.add(f"{name}: units a second", units / (watch.end - first), "1/s")
        results.add(f"{name}: overhead", 100 * (available / busy - 1), "%")
        if seconds and not slow:
            simulated = seconds * len(plan.samples[plan.cells[0].benchmark])
            results.add(f"{name}: of the units' time, making and encoding rows", 100 * (1 - simulated / busy), "%")
        results.add(f"{name}: memory that the driver took on", (watch.peak - before) / MiB, "MiB")


def first_cells(plan: GridPlan, cells: int, samples: int) -> GridPlan:
    (benchmark,) = plan.samples
    return replace(plan, cells=plan.cells[:cells], samples={benchmark: plan.samples[benchmark][:samples]})


def main() -> None:
    options, results = arguments(), Results()
    with tempfile.TemporaryDirectory(prefix="fanout-") as folder:
        experiment = spec_of(Path(folder), options.cells, options.samples, options.actors)
        results.add("memory of the driver, everything imported", psutil.Process().memory_info().rss / MiB, "MiB")
        plan = measure_plan(experiment, results)
        results.add("memory of the driver, planned", psutil.Process().memory_info().rss / MiB, "MiB")
        few = first_cells(plan, options.cells, max(options.actors * 8, options.samples // 5))
        with ray_cluster(cpus=options.actors):
            measure_run("equal actors", experiment, plan, options.seconds, 0, results)
            measure_run("half at a third of the speed", experiment, few, options.seconds, options.actors // 2, results)
            small = first_cells(plan, 3, options.samples)
            measure_run("units of 3 rows that take no time", experiment, small, 0.0, 0, results)
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    options.out.write_text(json.dumps({"settings": settings, "results": results.values}, indent=1))


if __name__ == "__main__":
    main()
