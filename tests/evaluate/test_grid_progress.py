"""What a grid knows about itself while it runs."""

import numpy as np
import pytest
from null_grid import PROVENANCE, null_assignment, null_cells, null_samples, null_spec

from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig
from indexmem.evaluate import progress as module
from indexmem.evaluate.progress import MAX_BUDGETS, MAX_METHODS, PartialScores, Progress
from indexmem.evaluate.rows import base_row, failed_row
from indexmem.evaluate.work import GridCell
from indexmem.evaluate.worker import KEPT_FAILURES, Digest
from indexmem.progress.status import FailureNote


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


def digest(finished, failed=0, **more) -> Digest:
    return Digest("b", np.zeros(1), np.array([finished]), np.array([failed]), **more)


def test_the_rate_is_that_of_the_last_minutes(clock):
    progress = Progress(10_000, done=1000)
    progress.start()
    assert (progress.rate, progress.left_seconds) == (None, None)
    for _ in range(100):  # slow at first
        clock.now += 10
        progress.add(digest(9, 1))
    assert progress.rate == pytest.approx(1)
    for _ in range(20):
        clock.now += 10
        progress.add(digest(50, prefilled_tokens=900, decoded_tokens=100))
    assert progress.rate == pytest.approx(5)
    assert progress.tokens_per_second == pytest.approx(100)
    assert progress.left_seconds == pytest.approx((7000 / 5, 7000 / 5))
    assert (progress.done, progress.failed) == (3000, 100)
    clock.now += 880  # a stall shows
    assert progress.rate == pytest.approx(0.6, rel=0.1)


def test_nothing_is_said_of_the_time_left_before_there_is_a_rate_and_then_a_range(clock):
    """What ran before the first unit, here 100 s of loading, is not counted as work."""
    progress = Progress(1000)
    progress.start()
    clock.now += 100
    for _ in range(4):
        progress.add(digest(10))
        clock.now += 1
        assert progress.left_seconds is None
    for _ in range(4):
        progress.add(digest(10))
        clock.now += 2
    assert progress.left_seconds == pytest.approx((920 / 10, 920 / 5))
    assert "92 s to 3 min left" in progress.line()


def test_long_units_have_a_rate_too(clock):
    progress = Progress(100)
    progress.start()
    for _ in range(20):
        clock.now += 600
        progress.add(digest(1))
    assert progress.rate == pytest.approx(1 / 600)


def test_the_status_of_the_moment(clock):
    progress = Progress(500)
    assert progress.line() == "0/500 rows"
    progress.start()
    clock.now += 10
    progress.add(digest(97, 3, batch_rows=7, cache_bytes=2**20, failures=(FailureNote("old", "x"),)))
    progress.actors, progress.note = 4, "waiting"
    assert progress.line() == "100/500 rows  3 failed  10 rows/s  4 actors  waiting"
    progress.add(digest(400, failures=(FailureNote("new", "y"),)))
    progress.actors, progress.note = 1, ""
    assert progress.line() == "500/500 rows  3 failed  50 rows/s  1 actor"
    status = progress.status()
    assert [failure.where for failure in status.failures] == ["new", "old"]
    assert (status.batch_rows, status.tokens_per_second) == (None, None)


def test_a_digest_says_of_rows_what_the_driver_needs(tmp_path):
    spec = null_spec(tmp_path)
    cells = [cell for cell in null_cells(spec) if cell.benchmark == "null_a"]
    tasks = null_assignment(spec)
    sample = null_samples(spec)["null_a"][0]
    measured = {"status": "ok", "context_tokens": 100, "new_tokens": 5, "decode_batch": 6, "memory_bytes": None}
    rows = [
        base_row(spec, sample, cell, "m", PROVENANCE) | measured | {"score": score, "kv_bytes": kv, "indexer_bytes": 4}
        for cell, score, kv in ((cells[0], 0.25, 96), (cells[2], 1.0, 196))
    ]
    rows += [failed_row(spec, sample, cells[1], "m", ValueError(f"no\x1b[31m {n}"), PROVENANCE) for n in range(7)]
    found = Digest.of(rows, "null_a", tasks.cells["null_a"])
    assert found.score_C.tolist() == [0.25, 0, 1]
    assert (found.finished_C.tolist(), found.failed_C.tolist()) == ([1, 0, 1], [0, 7, 0])
    assert (found.done, found.failed) == (9, 7)
    assert (found.prefilled_tokens, found.decoded_tokens, found.tokens) == (100, 10, 110)
    assert (found.batch_rows, found.cache_bytes) == (6, 900)
    assert len(found.failures) == KEPT_FAILURES
    assert found.failures[-1] == FailureNote("null 50% null_a/0", "ValueError: no [31m 6")
    rows += [failed_row(spec, sample, cells[1], "m", OSError("first"), PROVENANCE)]
    rows += [failed_row(spec, sample, cells[1], "m", ValueError("again"), PROVENANCE) for n in range(9)]
    both = Digest.of(rows, "null_a", tasks.cells["null_a"])
    assert {failure.kind for failure in both.failures} == {"null ValueError", "null OSError"}
    progress = Progress(100)
    progress.add(found)
    progress.add(both)
    assert [failure.reason for failure in progress.status().kinds] == ["ValueError: no [31m 2", "OSError: first"]
    empty = Digest.of([], "null_a", cells)
    assert (empty.done, empty.cache_bytes, empty.failures) == (0, 0, ())


def made_cells(methods, budgets, benchmarks=("a", "b")) -> dict[str, list[GridCell]]:
    return {
        name: [
            GridCell(f"{name}{m}{b}", MethodConfig(name=m), Budget.parse(b), name, "", "")
            for m in methods
            for b in budgets
        ]
        for name in benchmarks
    }


def test_partial_scores_are_means_over_benchmarks_of_what_is_there():
    cells = made_cells(("x", "y"), ("50%", "75%"))
    scores = PartialScores(cells, {"a": 2, "b": 2})
    nan = np.nan
    scores.stored("a", np.array([[1, nan, 0, nan], [1, nan, 1, nan]], np.float32))
    scores.add(Digest("b", np.array([0.5, 0, 2, 0]), np.array([1, 0, 2, 0]), np.array([0, 1, 0, 0])))
    table = scores.table()
    assert table.budgets == ("50%", "75%")
    assert [(m.method, m.means) for m in table.methods] == [("x", (0.75, None)), ("y", (0.75, None))]
    assert (scores.cells, scores.cells_done, scores.cells_failing) == (8, 3, 1)
    scores.stored("b", np.full((2, 4), 1, np.float32))
    assert scores.table().methods[0].means == (1.0, 1.0), "what the store holds replaces what was counted"


def test_a_huge_grid_has_a_small_table():
    methods, budgets = [f"m{n}" for n in range(60)], [f"{n} tokens" for n in range(1, 31)]
    cells = made_cells(methods, budgets, ("a",))
    scores = PartialScores(cells, {"a": 1})
    best = np.zeros((1, len(cells["a"])), np.float32)
    best[0, 59 * 30 :] = 1
    scores.stored("a", best)
    table = scores.table()
    assert (len(table.methods), len(table.budgets), table.omitted) == (MAX_METHODS, MAX_BUDGETS, 20 + 14)
    assert table.methods[0].method == "m59"
