"""A worker whose memory runs out: smaller pieces, every row once, and a failed row only where nothing helps."""

import io
import re
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from null_grid import NullEvaluator, null_assignment, null_plan, null_spec

from indexmem.evaluate.work import Backlog, packed_samples
from indexmem.evaluate.worker import Worker
from indexmem.results.schema import OK


class Scripted(NullEvaluator):
    """Raises what `fault(tasks)` gives, and notes how many rows were asked for."""

    def __init__(self, assignment, fault):
        super().__init__(assignment)
        object.__setattr__(self, "fault", fault)
        object.__setattr__(self, "asked", [])

    def evaluate(self, tasks):
        self.asked.append(sum(len(task.cells) for task in tasks))
        error = self.fault(tasks)
        if error is not None:
            raise error
        return super().evaluate(tasks)


def setup(tmp_path, fault, samples=4):
    spec = null_spec(tmp_path, f"grid.samples={samples}", "grid.benchmarks=[null_a]")
    evaluator = Scripted(null_assignment(spec), fault)
    backlog = Backlog(null_plan(spec).missing())
    return Worker(evaluator.assignment, evaluator), evaluator, backlog


def rows(outcome):
    return pq.read_table(io.BytesIO(outcome.rows)).to_pylist()


def test_memory_that_runs_out_halves_the_piece_and_the_size_is_remembered(tmp_path):
    worker, evaluator, backlog = setup(
        tmp_path, lambda tasks: torch.OutOfMemoryError("CUDA") if sum(len(t.cells) for t in tasks) > 4 else None
    )
    outcome = worker.run(backlog.take(2, 100))
    assert (outcome.digest.done, outcome.digest.failed) == (6, 0)
    assert evaluator.asked == [6, 3, 3]
    outcome = worker.run(backlog.take(2, 100))
    assert evaluator.asked == [6, 3, 3, 3, 3], "a second unit does not run into it again"
    assert {(r["sample_id"], r["status"]) for r in rows(outcome)} == {("null_a/2", OK), ("null_a/3", OK)}
    assert outcome.retention is None, "kept tokens are stored for the first samples only"


def test_the_cells_of_one_sample_are_halved_too(tmp_path):
    worker, evaluator, backlog = setup(tmp_path, lambda tasks: MemoryError() if len(tasks[0].cells) > 1 else None)
    outcome = worker.run(backlog.take(1, 100))
    assert (outcome.digest.done, outcome.digest.failed) == (3, 0)
    assert evaluator.asked == [3, 1, 1, 1] or evaluator.asked == [3, 1, 2, 1, 1]
    keys = [(r["cell_id"], r["sample_id"]) for r in rows(outcome)]
    assert len(set(keys)) == 3
    assert len(pq.read_table(io.BytesIO(outcome.retention))) == 3


def test_a_row_that_never_fits_fails_alone_and_does_not_make_the_next_units_small(tmp_path):
    def too_large(tasks):
        if any(cell.budget.ratio == 0.25 for task in tasks for cell in task.cells):
            return RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return None

    worker, evaluator, backlog = setup(tmp_path, too_large)
    outcome = worker.run(backlog.take(2, 100))
    found = rows(outcome)
    assert (outcome.digest.done, outcome.digest.failed) == (6, 2)
    assert {r["ratio"] for r in found if r["status"] != OK} == {0.25}
    assert all("can't allocate" in r["error_message"] for r in found if r["status"] != OK)
    worker.run(backlog.take(2, 100))
    assert evaluator.asked.count(6) == 2


def test_a_bad_sample_does_not_take_the_others_with_it(tmp_path):
    bad = lambda tasks: KeyError("letter") if any(t.sample.id == "null_a/1" for t in tasks) else None  # noqa: E731
    worker, evaluator, backlog = setup(tmp_path, bad)
    outcome = worker.run(backlog.take(4, 100))
    assert evaluator.asked == [12, 3, 3, 1, 2, 1, 1, 3, 3], "its cells are tried apart: one method may be at fault"
    failed = [r for r in rows(outcome) if r["status"] != OK]
    assert {(r["sample_id"], r["error_class"]) for r in failed} == {("null_a/1", "KeyError")}
    assert (outcome.digest.done, outcome.digest.failed) == (12, 3)


def test_a_bad_cell_does_not_take_the_other_cells_of_its_sample_with_it(tmp_path):
    """As a method that fails while it decodes."""
    bad = lambda tasks: ZeroDivisionError() if any(c.budget.ratio == 0.25 for t in tasks for c in t.cells) else None  # noqa: E731
    worker, _, backlog = setup(tmp_path, bad)
    outcome = worker.run(backlog.take(4, 100))
    assert (outcome.digest.done, outcome.digest.failed) == (12, 4)
    assert {r["ratio"] for r in rows(outcome) if r["status"] != OK} == {0.25}


def test_a_lost_device_is_not_survived(tmp_path):
    worker, _, backlog = setup(tmp_path, lambda tasks: torch.AcceleratorError("CUDA error: illegal memory access"))
    with pytest.raises(torch.AcceleratorError):
        worker.run(backlog.take(2, 100))


def test_rows_that_an_evaluator_forgets_are_noticed(tmp_path):
    worker, evaluator, backlog = setup(tmp_path, lambda tasks: None)
    object.__setattr__(evaluator, "evaluate", lambda tasks: ([], []))
    with pytest.raises(AssertionError, match="0 rows of 6"):
        worker.run(backlog.take(2, 100))


@pytest.mark.parametrize("field", ["prediction", "references", "labels"])
def test_a_row_that_cannot_be_stored_is_a_failed_row(tmp_path, field):
    worker, evaluator, backlog = setup(tmp_path, lambda tasks: None)
    answer = evaluator.evaluate
    unstorable = ["cut \ud83d off"] if field == "references" else "cut \ud83d off"

    def evaluate(tasks):
        found, retention = answer(tasks)
        bad = [row | {field: unstorable} if row["sample_id"] == "null_a/1" else row for row in found]
        return bad, retention

    object.__setattr__(evaluator, "evaluate", evaluate)
    outcome = worker.run(backlog.take(2, 100))
    assert (outcome.digest.done, outcome.digest.failed) == (6, 3)
    failed = [row for row in rows(outcome) if row["status"] != OK]
    assert {(row["sample_id"], row["error_class"]) for row in failed} == {("null_a/1", "ValueError")}
    assert all(f"field '{field}' must be" in row["error_message"] for row in failed)


def test_a_failed_row_can_be_stored_whatever_its_sample_and_error_say(tmp_path):
    worker, evaluator, backlog = setup(tmp_path, lambda tasks: OSError("no file caf\udce9.txt"))
    bad = replace(evaluator.assignment.tasks(backlog.take(1, 100))[0].sample, references=("\ud83d!",))
    samples = evaluator.assignment.samples | {"null_a": packed_samples([bad] * 4)}
    worker.assignment = replace(evaluator.assignment, samples=samples)
    (found, *_) = rows(worker.run(backlog.take(1, 100)))
    assert found["references"] == ["\ufffd!"]
    place = r" \(\w+/test_grid_worker\.py:\d+\)"
    assert re.fullmatch("no file caf\ufffd.txt" + place, found["error_message"]), "what, and where it was raised"
