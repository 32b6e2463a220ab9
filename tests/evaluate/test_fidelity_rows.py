"""`grid.fidelity`: columns of every row, whichever cells are asked for; plans that cannot measure it."""

import pytest
from tiny_models import save_tiny_model, tiny_backbone
from tiny_tokenizers import SENTENCES

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.work import GridCell, Task

SPEC = {
    "eviction": {"sinks": 2},
    "grid": {"methods": ["full", "knorm", {"name": "snapkv", "params": {"window_size": 500}}], "fidelity": True},
}


@pytest.fixture(scope="module")
def evaluator():
    spec = validate(SPEC, "test")
    methods = {config.label: config for config in spec.grid.methods}
    return CellEvaluator.load(spec, methods, None, {"git_commit": "", "versions": {}, "host": ""}, tiny_backbone())


def task_of(evaluator, *ids: str) -> Task:
    sample = Sample("niah_single_1/0", "niah_single_1", " ".join(SENTENCES[:4]), "what?", "", ("x",), 8)
    cells = {
        f"{config.name} {ratio}": GridCell(
            f"{config.name} {ratio}", config, Budget.of_ratio(ratio), "niah_single_1", "b", ""
        )
        for config in evaluator.experiment.grid.methods
        for ratio in ((0.0,) if config.name == "full" else (0.0, 0.8))
    }
    return Task(sample, tuple(cells[name] for name in ids or cells), keep_retention=True)


def test_every_row_says_how_far_it_is_from_the_full_cache(evaluator):
    rows, _ = evaluator.evaluate([task_of(evaluator)])
    found = {row["cell_id"]: (row["status"], row["fidelity_kl"], row["fidelity_top1"]) for row in rows}
    assert found.pop("snapkv 0.8") == ("failed", None, None), "a method that fails has none"
    assert found["full 0.0"] == ("ok", 0.0, 1.0)
    assert found["knorm 0.0"] == ("ok", pytest.approx(0, abs=1e-6), 1.0)
    assert found["knorm 0.8"][1] > 1e-4


def test_the_full_cache_is_answered_from_when_its_row_is_stored_already(evaluator):
    rows, retention = evaluator.evaluate([task_of(evaluator, "knorm 0.8")])
    whole, _ = evaluator.evaluate([task_of(evaluator)])
    (row,) = rows
    assert [each["cell_id"] for each in retention] == ["knorm 0.8"]
    (same,) = (each for each in whole if each["cell_id"] == "knorm 0.8")
    assert (row["fidelity_kl"], row["fidelity_top1"]) == pytest.approx((same["fidelity_kl"], same["fidelity_top1"]))


def test_it_is_part_of_a_cells_identity_and_needs_the_full_cache(tmp_path):
    model = {"id": str(save_tiny_model(tmp_path / "model"))}
    grid = {"benchmarks": ["niah_single_1"], "samples": 1, "length": 640, "methods": ["full", "knorm"]}
    known = {"model": model, "run": {"root": str(tmp_path / "runs")}}
    plans = [plan(validate(known | {"grid": grid | {"fidelity": asked}}, "test")) for asked in (False, True)]
    assert not set(plans[0].cell_ids) & set(plans[1].cell_ids)
    with pytest.raises(UserError, match="Add full to grid"):
        plan(validate(known | {"grid": grid | {"fidelity": True, "methods": ["knorm"]}}, "test"))
