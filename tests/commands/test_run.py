"""`indexmem run` and `indexmem eval`: what is missing is said before anything is trained, read or fetched."""

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.config.schema import MethodConfig
from indexmem.distill.trainees.registry import make_trainees
from indexmem.eviction.methods.names import trained_modules
from indexmem.models.backbone import inspect

NO_RAY = ("distill", "evaluate", "sweep")


@pytest.fixture
def spec_file(tmp_path, monkeypatch):
    for verb in NO_RAY:
        starter = f"indexmem.commands.{verb}.ray_cluster"
        monkeypatch.setattr(starter, lambda *a, **k: pytest.fail("Ray was about to start"))
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    spec = {
        "model": {"id": str(tmp_path / "model")},
        "distill": {"texts": [str(tmp_path / "text.txt")], "length": 96, "workers": 1},
        "grid": {
            "methods": ["full", "indexer"],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 1,
            "haystack": str(tmp_path / "text.txt"),
        },
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path / "spec.yaml"


def test_an_evaluation_before_its_training_says_so_at_once(spec_file, capsys, monkeypatch):
    monkeypatch.setattr("indexmem.evaluate.grid.inspect", lambda *a: pytest.fail("the model was about to be read"))
    monkeypatch.setattr("indexmem.evaluate.modules.DistillRun", None)  # whose name takes reading all texts
    assert main(["eval", str(spec_file), "model.id=org/on-the-hub"]) == 2
    said = capsys.readouterr().err
    assert "The grid compares indexer, but this spec's modules are not trained yet" in said
    assert "Use `indexmem run SPEC`" in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["grid.methods=[full, indexmem]"], "needs the module memory-indexer, and this spec trains indexer. "),
        (["grid.methods=[full, locret]"], "'locret' needs the module locret"),
        (
            ["distill.modules=[indexer, memory]", "grid.methods=[full, snapkv+memory]"],
            "'snapkv+memory' needs the module memory-snapkv, and this spec trains indexer, memory-indexer.",
        ),
        (["grid.benchmarks=[niah_singel_1]"], "niah_single_1"),
        (["grid.length=4096"], "model's context of 1024 tokens"),
        (["distill.length=4096"], "model's context of 1024 tokens"),
    ],
)
def test_nothing_is_trained_for_a_grid_that_cannot_be_evaluated(spec_file, capsys, overrides, words):
    assert main(["run", str(spec_file), *overrides]) == 2
    assert words in capsys.readouterr().err
    assert not (spec_file.parent / "runs").exists()


def test_a_dry_run_shows_training_and_grid(spec_file, capsys):
    assert main(["run", str(spec_file), "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert said.index("distill experiment: 4100 steps") < said.index("eval experiment: 2 methods, 5 cells")
    assert main(["run", str(spec_file), "grid.methods=[full, knorm]", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "nothing to train" in said and "distill experiment" not in said


def test_a_spec_with_axes_is_swept(spec_file, capsys):
    axes = "sweep.axes={indexer.token_term: [4, 8]}"
    assert main(["run", str(spec_file), axes, "sweep.search=grid", "--dry-run"]) == 0
    assert "sweep experiment: 2 trials" in capsys.readouterr().err


def test_a_stopped_training_is_not_evaluated(spec_file, monkeypatch):
    monkeypatch.setattr("indexmem.commands.run.distill_spec", lambda *a, **k: 143)
    monkeypatch.setattr("indexmem.commands.run.evaluate_spec", lambda *a, **k: pytest.fail("evaluated"))
    assert main(["run", str(spec_file)]) == 143


def test_modules_of_methods_have_the_names_that_training_gives_them(spec_file):
    overrides = ["distill.modules=[indexer, memory, locret]", "memory.bases=[indexer, snapkv]"]
    spec = load(spec_file, overrides)
    made = {trainee.name for trainee in make_trainees(spec, inspect(spec.model))}
    methods = ["indexmem", "snapkv+memory", "locret", {"name": "adakv", "params": {"base": "indexer"}}, "tova"]
    assert set().union(*(trained_modules(MethodConfig.model_validate(method)) for method in methods)) == made


def test_sending_an_evaluation_says_that_its_modules_must_be_there(spec_file, capsys):
    """What is trained on the cluster is not known here; what the spec would not train is."""
    assert main(["submit", "eval", str(spec_file), "--dry-run"]) == 0
    assert "indexer: modules that this spec trains. Where they are not trained" in capsys.readouterr().err
    for verb, overrides in (("run", []), ("eval", ["grid.methods=[full, knorm]"])):
        assert main(["submit", verb, str(spec_file), *overrides, "--dry-run"]) == 0
        assert "modules that this spec trains" not in capsys.readouterr().err
    assert main(["submit", "eval", str(spec_file), "grid.methods=[full, locret]", "--dry-run"]) == 2
    assert "'locret' needs the module locret" in capsys.readouterr().err
