"""The fan-out: an actor that dies costs nothing, a cell that cannot run is a row that says so."""

from dataclasses import replace

import psutil
import pytest
from grids import remaining
from null_driver import actors
from tiny_models import save_tiny_model

from indexmem.config.load import with_overrides
from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.fanout import evaluate_on_ray
from indexmem.evaluate.grid import plan

pytestmark = pytest.mark.ray

PROVENANCE = {"git_commit": "c0ffee", "versions": {"python": "3"}, "host": "test"}
ANSWER = ("cell_id", "sample_id", "prediction", "score", "kept_min", "kept_max", "kv_bytes", "status")


def answers(rows) -> set[tuple]:
    return {tuple(row[name] for name in ANSWER) for row in rows}


def undisturbed(spec, grid) -> set[tuple]:
    evaluator = CellEvaluator.load(spec, grid.methods, grid.checkpoint, PROVENANCE)
    return answers(row for task in remaining(grid) for row in evaluator.evaluate([task])[0])


def test_killed_actors_cost_no_row_and_repeat_none(local_ray, spec):
    # All three kills may hit the same unit: chance decides which actor takes it up again.
    spec = with_overrides(spec, ["grid.max_attempts=4"])
    grid = plan(spec)
    expected = undisturbed(spec, grid)
    kills = []

    def kill(progress):
        if len(kills) < 3 and progress.done < progress.total and (victims := actors("Evaluator.evaluate")):
            victims[0].kill()
            kills.append(victims[0].pid)

    progress = evaluate_on_ray(spec, grid, PROVENANCE, kill)
    assert len(set(kills)) == 3, "no actor was killed at work: the test did not test"
    assert (progress.done, progress.failed) == (grid.row_count, 0)
    rows = grid.store.read(grid.partitions).to_pylist()
    assert answers(rows) == expected
    assert len(rows) == grid.row_count == 2 * 7 * 6
    assert remaining(grid) == []
    # A second run finds nothing to do, and starts no actor.
    before = {p.pid for p in actors()}
    assert evaluate_on_ray(spec, grid, PROVENANCE).done == grid.row_count
    assert {p.pid for p in actors()} <= before
    psutil.wait_procs(actors(), timeout=20)
    assert actors() == [], "a finished grid leaves no actor behind"
    examples = grid.store.read(grid.partitions, "retention").to_pylist()
    assert {row["sample_id"].split("/")[1] for row in examples} == {"0", "1"}
    for row in examples:
        kept = sum(row["retention"]) / len(row["retention"])
        (measured,) = [
            r["measured_ratio"] for r in rows if (r["cell_id"], r["sample_id"]) == (row["cell_id"], row["sample_id"])
        ]
        assert kept == pytest.approx(1 - measured, abs=1e-4)


def test_more_samples_run_only_what_is_new(local_ray, spec):
    few = with_overrides(spec, ["grid.samples=2", "grid.methods=[full, knorm]"])
    evaluate_on_ray(few, plan(few), PROVENANCE)
    more = with_overrides(spec, ["grid.samples=3", "grid.methods=[full, knorm, random]"])
    grid = plan(more)
    assert sorted((t.sample.id, len(t.cells)) for t in remaining(grid)) == [
        ("niah_multikey_1/0", 2),
        ("niah_multikey_1/1", 2),
        ("niah_multikey_1/2", 5),
        ("niah_single_1/0", 2),
        ("niah_single_1/1", 2),
        ("niah_single_1/2", 5),
    ]


def test_a_method_that_fails_gives_failed_rows_and_the_others_go_on(local_ray, spec):
    small = with_overrides(spec, ["grid.samples=1", "grid.methods=[full, snapkv]", "grid.benchmarks=[niah_single_1]"])
    grid = plan(small)
    too_wide = MethodConfig(name="snapkv", params={"window_size": 9999})  # what a plan would refuse
    progress = evaluate_on_ray(small, replace(grid, methods={**grid.methods, "snapkv": too_wide}), PROVENANCE)
    rows = grid.store.read(grid.partitions).to_pylist()
    assert (progress.done, progress.failed) == (3, 2)
    assert {(row["method"], row["status"], row["error_class"]) for row in rows} == {
        ("full", "ok", None),
        ("snapkv", "failed", "ValueError"),
    }
    assert "ranks contexts of 10000 tokens or more" in next(r["error_message"] for r in rows if r["status"] == "failed")
    assert evaluate_on_ray(small, grid, PROVENANCE).failed == 0, "a restart tries failed cells again"
    assert set(grid.store.read(grid.partitions)["status"].to_pylist()) == {"ok"}


def test_a_model_that_cannot_load_ends_the_run_with_the_reason(local_ray, spec, tmp_path):
    once = with_overrides(spec, ["grid.samples=1", "grid.methods=[full]", "grid.benchmarks=[niah_single_1]"])
    grid = plan(once)
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"(?s)3 actors in a row died before they could work.*model\.safetensors"):
        evaluate_on_ray(once, grid, PROVENANCE)
    assert grid.store.read(grid.partitions).num_rows == 0
    assert list((tmp_path / "runs" / "leases").glob("*.json")) == []
    save_tiny_model(tmp_path / "model")
    assert evaluate_on_ray(once, grid, PROVENANCE).failed == 0
    assert grid.store.read(grid.partitions)["status"].to_pylist() == ["ok"]


def test_actors_that_can_never_fit_are_refused(local_ray, spec):
    wide = with_overrides(spec, ["grid.cpus_per_actor=64", "grid.actors=1"])
    with pytest.raises(UserError, match="64 CPU and 0 GPU each do not fit this cluster"):
        evaluate_on_ray(wide, plan(wide), PROVENANCE)


def test_more_actors_than_fit_are_taken_as_they_come(local_ray, spec):
    few = with_overrides(spec, ["grid.samples=2", "grid.methods=[full]", "grid.actors=4", "grid.samples_per_batch=2"])
    seen = []
    progress = evaluate_on_ray(few, plan(few), PROVENANCE, lambda progress: seen.append(progress.actors))
    assert (progress.done, progress.failed) == (4, 0)
    assert 1 <= max(seen) <= 2
