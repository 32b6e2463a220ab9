"""`indexmem sweep`: plans of the shipped sweeps, and mistakes that are found before Ray starts."""

from pathlib import Path

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.config.spec import flatten
from indexmem.locks.leases import Leases
from indexmem.results.sweeps import COMPLETE, Trial
from indexmem.sweep.plan import plan_sweep

TUNE = sorted((Path(__file__).parents[2] / "sweeps" / "tune").glob("*.yaml"))


@pytest.fixture
def spec_path(tmp_path, monkeypatch):
    monkeypatch.setattr("indexmem.commands.sweep.ray_cluster", lambda *a, **k: pytest.fail("Ray was about to start"))
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    spec = {
        "model": {"id": str(tmp_path / "model")},
        "distill": {"texts": [str(tmp_path / "text.txt")], "length": 96, "workers": 1},
        "grid": {
            "methods": ["indexer"],
            "ratios": [0.75],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 1,
            "haystack": str(tmp_path / "text.txt"),
        },
        "indexer": {"pair_term": True},
        "sweep": {"axes": {"indexer.dim": [2, 4], "indexer.share_every": [1, 3]}, "objectives": ["score"]},
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path / "spec.yaml"


MISTAKES = {
    "an unknown axis": ("sweep.axes.indexer.dimm=[4]", "unknown key 'indexer.dimm'. Did you mean 'dim'?"),
    "an unknown metric": ("sweep.objectives=[scores]", "no metric is called 'scores'. Did you mean 'score'?"),
    "a length that the model does not have": ("sweep.axes.distill.length=[96,4096]", "context of 1024 tokens"),
    "nothing to tell apart": ("grid.methods=[full]", "grid.methods evicts nothing"),
    "an unknown method": ("grid.methods=[indexr]", "Unknown method 'indexr'"),
    "weights that are not those of the trials": (
        "indexer.checkpoint=. sweep.scheduler=asha",
        "instead of those that trials train",
    ),
    "population-based training": ("sweep.scheduler=pbt", "use 'asha' or 'none'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_with_one_message(spec_path, capsys, name):
    overrides, complaint = MISTAKES[name]
    assert main(["sweep", str(spec_path), *overrides.split()]) == 2
    assert complaint in capsys.readouterr().err
    assert not (spec_path.parent / "runs" / "sweeps").exists()


def test_a_dry_run_prints_the_plan_and_writes_nothing(spec_path, capsys):
    assert main(["sweep", str(spec_path), "sweep.max_concurrent=1", "--dry-run"]) == 0
    said = capsys.readouterr().err
    for line in (
        "4 trials, by tpe",
        "  indexer.dim: 2, 4\n",
        "  space: 4 points\n",
        "score (max)",
        "training of 4100 steps and evaluation of indexer at 75% on 1 samples of each benchmark; 1 CPU\n",
        "  at once: 1 on",
        "stored: 0 trials",
    ):
        assert line in said
    assert not (spec_path.parent / "runs" / "sweeps").exists()


def test_a_second_driver_is_told_who_is_at_work(spec_path, capsys, tmp_path):
    plan = plan_sweep(load(spec_path))
    with Leases(tmp_path / "runs" / "leases") as leases:
        leases.claim({f"sweep-{plan.sweep.id}"})
        assert main(["sweep", str(spec_path)]) == 2
    assert "does this already" in capsys.readouterr().err


def test_sync_publishes_what_is_stored(spec_path, capsys):
    assert main(["sync", str(spec_path)]) == 2
    assert "Nothing is stored of this sweep yet" in capsys.readouterr().err
    plan = plan_sweep(load(spec_path))
    plan.folder.write_header(plan.sweep)
    plan.folder.write(Trial("t0", 0, COMPLETE, {"indexer.dim": 2, "indexer.share_every": 1}, {"score": 0.5}))
    assert main(["sync", str(spec_path)]) == 0
    said = capsys.readouterr().out
    assert "trial 0: score 0.5 (indexer.dim=2, indexer.share_every=1)\n" in said
    assert "MLflow: " in said
    best = spec_path.parent / "runs" / "reports" / "experiment-best.yaml"
    assert f"Best as a spec: {best}" in said
    spec = load(best)
    assert (spec.name, spec.indexer.dim, spec.indexer.share_every) == ("experiment-best", 2, 1)
    assert spec.grid == load(spec_path).grid, "so that an evaluation finds the winner's rows"
    assert spec.sweep.axes == {}
    assert main(["eval", str(best), "--dry-run"]) == 0
    assert (spec_path.parent / "runs" / "mlflow.db").is_file()


def test_a_sweep_that_mlflow_does_not_take_is_no_success(spec_path):
    plan = plan_sweep(load(spec_path))
    plan.folder.write_header(plan.sweep)
    plan.folder.write(Trial("t0", 0, COMPLETE, {"indexer.dim": 2, "indexer.share_every": 1}, {"score": 0.5}))
    (spec_path.parent / "runs" / "mlflow.db").write_text("this is no database")
    with pytest.warns(RuntimeWarning, match="file is not a database"):
        assert main(["sync", str(spec_path)]) == 1


def test_a_damaged_header_is_a_message(spec_path, capsys):
    plan = plan_sweep(load(spec_path))
    plan.folder.write_header(plan.sweep)
    (plan.folder.path / "sweep.json").write_text("")
    assert main(["sync", str(spec_path)]) == 2
    assert "sweep.json is damaged" in capsys.readouterr().err


def test_trials_at_once_never_wait_for_each_other(spec_path):
    """As many as fit whole, whatever the number of their workers."""

    def at_once(room, *overrides):
        return plan_sweep(load(spec_path, list(overrides))).concurrency(room)

    assert at_once(3) == 3
    assert at_once(9) == 4, "there are no more trials"
    assert at_once(9, "sweep.max_concurrent=2") == 2
    assert at_once(5, "distill.workers=2") == 2
    assert at_once(1, "distill.workers=2") == 0
    assert plan_sweep(load(spec_path, ["distill.workers=2"])).nested
    trained = ["distill.workers=2", "grid.methods=[knorm]"]
    assert not plan_sweep(load(spec_path, trained)).nested, "what trains nothing needs no workers"


def test_a_setting_that_comes_later_renames_no_sweep(spec_path, monkeypatch):
    name = plan_sweep(load(spec_path)).sweep.id
    monkeypatch.setattr("indexmem.sweep.plan.flatten", lambda value: flatten(value) | {"eviction.stride": 1})
    assert plan_sweep(load(spec_path)).sweep.id == name


def test_a_sweep_is_the_same_when_it_is_to_be_longer_or_faster(spec_path):
    def name(*overrides):
        return plan_sweep(load(spec_path, list(overrides))).sweep.id

    assert name("sweep.trials=3", "sweep.max_concurrent=1", "run.root=/elsewhere") == name()
    assert name("sweep.seed=1") != name()
    assert name("distill.seed=1") != name()


@pytest.mark.parametrize("path", TUNE, ids=lambda path: path.stem)
@pytest.mark.model
def test_every_shipped_sweep_dry_runs(path, tmp_path, capsys):
    assert main(["sweep", str(path), f"run.root={tmp_path}", "grid.samples=1", "--dry-run"]) == 0
    assert f"sweep {load(path).name}: " in capsys.readouterr().err


def test_sweeps_are_shipped():
    assert len(TUNE) >= 4
