"""A grid in this process: stored unit by unit, stopped and continued, beside other drivers, with failures as rows."""

from typing import ClassVar

import pytest
import torch
from grids import remaining
from null_grid import PROVENANCE, NullEvaluator, null_assignment, null_plan, null_spec

from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.local import evaluate_here
from indexmem.locks.leases import Leases
from indexmem.results.schema import OK


@pytest.fixture
def spec(tmp_path):
    return null_spec(tmp_path, "grid.samples=4")  # units of 2 samples, 3 cells


@pytest.fixture
def evaluator(spec, monkeypatch):
    """Null evaluation instead of a model; `broken` samples raise what it is set to."""

    class Evaluator(NullEvaluator):
        broken: ClassVar[dict[str, Exception]] = {}
        at_once: ClassVar[list[int]] = []

        def evaluate(self, tasks):
            self.at_once.append(sum(len(task.cells) for task in tasks))
            for task in tasks:
                if task.sample.id in self.broken:
                    raise self.broken[task.sample.id]
            return super().evaluate(tasks)

    monkeypatch.setattr(CellEvaluator, "load", lambda *_: Evaluator(null_assignment(spec)))
    Evaluator.broken, Evaluator.at_once = {}, []
    return Evaluator


def rows_of(plan):
    return plan.store.read(plan.partitions).to_pylist()


def test_who_stops_early_keeps_what_is_stored_and_lets_go_of_the_cells(tmp_path, spec, evaluator):
    plan = null_plan(spec)
    steps = evaluate_here(spec, plan, PROVENANCE)
    done = [next(steps).done for _ in range(3)]
    assert done == [0, 6, 12]
    assert len(list((tmp_path / "leases").glob("*.json"))) == 1, "held while it works"
    steps.close()
    assert list((tmp_path / "leases").glob("*.json")) == []
    assert len(rows_of(plan)) == 12
    *_, last = evaluate_here(spec, plan, PROVENANCE)
    assert (last.done, last.total, last.failed, last.actors) == (24, 24, 0, 0)
    assert sum(evaluator.at_once) == 24, "nothing is computed twice"
    assert remaining(plan) == []


def test_a_sample_that_fails_costs_its_own_rows_and_is_tried_again_by_the_next_call(spec, evaluator):
    plan = null_plan(spec)
    evaluator.broken["null_a/1"] = ValueError("too odd")
    *_, last = evaluate_here(spec, plan, PROVENANCE)
    assert (last.done, last.failed) == (24, 3)
    failed = {
        (row["sample_id"], row["error_class"], row["error_message"]) for row in rows_of(plan) if row["status"] != OK
    }
    assert {(sample, kind, said.partition(" (")[0]) for sample, kind, said in failed} == {
        ("null_a/1", "ValueError", "too odd")
    }
    evaluator.broken.clear()
    *_, last = evaluate_here(spec, plan, PROVENANCE)
    assert (last.done, last.failed) == (24, 0)
    assert {row["status"] for row in rows_of(plan)} == {OK}


def test_memory_that_runs_out_means_less_at_once(spec, evaluator, monkeypatch):
    whole = evaluator.evaluate

    def tight(self, tasks):
        if sum(len(task.cells) for task in tasks) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, tasks)

    monkeypatch.setattr(evaluator, "evaluate", tight)
    *_, last = evaluate_here(spec, null_plan(spec), PROVENANCE)
    assert (last.done, last.failed) == (24, 0)
    assert set(evaluator.at_once) == {3}


def test_cells_of_another_driver_are_waited_for(tmp_path, spec, evaluator, monkeypatch):
    monkeypatch.setattr("indexmem.evaluate.driver.WAIT_SECONDS", 0.01)
    plan = null_plan(spec)
    with Leases(tmp_path / "leases") as other:
        other.claim(set(plan.cell_ids[:1]))
        notes = []
        for progress in evaluate_here(spec, plan, PROVENANCE):
            if progress.note:
                notes.append((progress.note, progress.done))
                other.release()
    assert notes[0][0].startswith("waiting for 1 cells of ")
    assert notes[0][1] == 20, "the others are done first"
    assert (progress.done, progress.note) == (24, "")
