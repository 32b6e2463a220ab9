"""Work that kills its worker, actors that find no place: the rest goes on, and the reason is told."""

import os
import sys
import time
from dataclasses import dataclass

import null_grid
import pytest
import ray
from null_grid import PROVENANCE, NullEvaluator, NullLoad, null_plan, null_spec
from ray import cloudpickle

from indexmem.errors import UserError
from indexmem.evaluate import crew, fanout
from indexmem.evaluate.fanout import evaluate_on_ray
from indexmem.results.schema import OK

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def _ship_test_code(local_ray):
    """Workers cannot import test modules by name."""
    modules = (null_grid, sys.modules[__name__])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@dataclass(frozen=True)
class PoisonLoad:
    """`sample` does `harm`: ends the process, or raises as a broken GPU does."""

    sample: str
    harm: str
    deaths: str  # folder with a file for each time

    def __call__(self, assignment):
        load = self

        class Poisoned(NullEvaluator):
            def evaluate(self, tasks):
                if any(task.sample.id == load.sample for task in tasks):
                    open(os.path.join(load.deaths, str(time.time_ns())), "w").close()
                    if load.harm == "exit":
                        time.sleep(0.3)  # else the answer before is lost on its way, and its unit blamed
                        os._exit(1)
                    import torch

                    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
                return super().evaluate(tasks)

        return Poisoned(assignment)


@pytest.mark.parametrize(("harm", "reason"), [("exit", "ActorDiedError"), ("device", "AcceleratorError")])
def test_a_sample_that_kills_its_worker_is_tried_alone_and_then_fails_alone(tmp_path, harm, reason):
    spec = null_spec(tmp_path, "grid.samples=8", "grid.benchmarks=[null_a]", "grid.max_attempts=2")
    plan = null_plan(spec)
    (tmp_path / "deaths").mkdir()
    progress = evaluate_on_ray(spec, plan, PROVENANCE, load=PoisonLoad("null_a/3", harm, str(tmp_path / "deaths")))
    assert (progress.done, progress.failed) == (24, 3)
    rows = plan.store.read(plan.partitions).to_pylist()
    assert len(rows) == 24
    assert {(r["sample_id"], r["error_class"]) for r in rows if r["status"] != OK} == {("null_a/3", reason)}
    assert len(list((tmp_path / "deaths").iterdir())) == 2 + 2, "twice with its neighbour, twice alone"
    assert evaluate_on_ray(spec, plan, PROVENANCE, load=NullLoad()).failed == 0, "a restart tries them again"
    assert set(plan.store.read(plan.partitions)["status"].to_pylist()) == {OK}


def test_actors_without_a_place_say_what_they_need_and_start_once_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "PLACEMENT_SECONDS", 1.0)
    spec = null_spec(tmp_path, "grid.samples=4")

    @ray.remote(num_cpus=2)
    class Squatter:
        def here(self):
            return True

    squatter = Squatter.remote()
    assert ray.get(squatter.here.remote())
    notes = []

    def watch(progress):
        if progress.note:
            notes.append((progress.note, progress.done))
            ray.kill(squatter)

    progress = evaluate_on_ray(spec, null_plan(spec), PROVENANCE, watch, NullLoad())
    wanted, cluster = "each needs 1 CPU and 0 GPU", "0 CPU and 0 GPU free of 2 CPU and 0 GPU"
    assert notes[0] == (f"no actor has a place: {wanted}; the cluster has {cluster}", 0)
    assert (progress.done, progress.failed, progress.note) == (24, 0, "")


@dataclass(frozen=True)
class DyingLoad:
    def __call__(self, assignment):
        os._exit(1)


def test_processes_that_die_while_loading_end_the_run(tmp_path):
    spec = null_spec(tmp_path, "grid.samples=4")
    started = time.monotonic()
    with pytest.raises(UserError, match="3 actors in a row died before they could work"):
        evaluate_on_ray(spec, null_plan(spec), PROVENANCE, load=DyingLoad())
    assert time.monotonic() - started < 40


def test_answers_of_an_actor_may_come_in_any_order(tmp_path, monkeypatch):
    class Backwards(crew.Crew):
        def wait(self, seconds):
            time.sleep(0.2)
            done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=seconds)
            return self._receive(done[-1]) if done else None

    monkeypatch.setattr(fanout, "Crew", Backwards)
    spec = null_spec(tmp_path, "grid.samples=4", "grid.actors=1")
    progress = evaluate_on_ray(spec, null_plan(spec), PROVENANCE, load=NullLoad())
    assert (progress.done, progress.failed) == (24, 0)
