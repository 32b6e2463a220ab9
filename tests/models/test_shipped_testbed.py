"""What the package carries: a model that retrieves, and modules that fit it."""

import json

from grids import remaining

from indexmem.config.load import load, validate
from indexmem.config.text import MIXTURE
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.models.assets import SHIPPED, TESTBED_MODULES, modules_folder, shipped_models

PROVENANCE = {"git_commit": "test", "versions": {}, "host": "test"}
LEARNED = ["indexmem", "indexer", "snapkv+memory", "locret"]


def rows_of(tmp_path, **grid):
    raw = {
        "model": {"id": "testbed"},
        "indexer": {"checkpoint": TESTBED_MODULES},
        "grid": {"length": 1024, **grid},
        "run": {"root": str(tmp_path)},
    }
    experiment = validate(raw, "test")
    planned = plan(experiment)
    evaluator = CellEvaluator.load(experiment, planned.methods, planned.checkpoint, PROVENANCE)
    rows, _ = evaluator.evaluate(remaining(planned))
    assert all(row["status"] == "ok" for row in rows), [row["error_message"] for row in rows]
    return rows


def test_it_answers_with_its_full_cache(tmp_path):
    rows = rows_of(tmp_path, methods=["full"], benchmarks=["niah_single_2", "niah_multikey_1", "vt"], samples=4)
    assert sum(row["score"] for row in rows) / len(rows) >= 0.9


def test_its_modules_run_at_once_and_the_memory_keeps_what_was_evicted(tmp_path):
    rows = rows_of(tmp_path, methods=LEARNED, ratios=[0.97], benchmarks=["niah_multivalue"], samples=6)
    scores = {method: sum(row["score"] for row in rows if row["method"] == method) for method in LEARNED}
    assert scores["indexmem"] >= scores["indexer"] + 1  # of 6
    assert {row["memory_bytes"] > 0 for row in rows if row["method"] == "indexmem"} == {True}


def test_what_is_shipped_is_small_and_says_where_it_comes_from():
    assert (shipped_models()["testbed"] / "model.safetensors").stat().st_size < 16 * 2**20
    folder = modules_folder(TESTBED_MODULES)
    assert folder == SHIPPED / TESTBED_MODULES
    sizes = {path.stem: path.stat().st_size for path in folder.glob("*.safetensors")}
    assert set(sizes) == {"indexer", "locret", "memory-indexer", "memory-snapkv"}
    assert max(sizes.values()) < 2 * 2**20
    config = json.loads((folder / "config.json").read_text())
    for module in config["modules"].values():
        assert module["trained"]["backbone"] == "testbed"
        texts = {text["name"] for text in module["trained"]["distill"]["texts"]}
        assert texts == {text.name for text in MIXTURE}, "no task of the evaluation"


def test_other_checkpoints_are_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert modules_folder("some/folder") == tmp_path / "some" / "folder"


def test_the_specs_of_the_modules_are_those_in_the_repository():
    """But for what the comments of sweeps/testbed-modules.yaml say."""
    modules = json.loads((modules_folder(TESTBED_MODULES) / "config.json").read_text())["modules"]
    spec = load("sweeps/indexer/testbed.yaml")
    ours = spec.distill.model_dump(mode="json")
    longer = load("sweeps/testbed-modules.yaml").distill.schedule
    assert modules["indexer"]["trained"]["distill"]["schedule"] == longer.model_dump(mode="json")
    for name, changed in (
        ("indexer", {"schedule", "checkpoint_every"}),
        ("memory-indexer", {"schedule", "checkpoint_every", "modules", "batch_size"}),
        ("locret", {"modules", "locret_hidden"}),
    ):
        trained = modules[name]["trained"]
        assert trained["target"] == spec.target.model_dump(mode="json")
        assert {key for key, value in trained["distill"].items() if value != ours[key]} == changed
