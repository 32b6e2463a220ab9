"""Mistakes end with one clear message and exit code 2, before Ray is started."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_models import save_tiny_model, tiny_config
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.config.modules import IndexerConfig
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.models.geometry import Geometry

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "indexmem.cluster.connection.ray_cluster", lambda *a, **k: pytest.fail("Ray was about to start")
    )
    for verb in ("distill", "evaluate"):
        starter = f"indexmem.commands.{verb}.ray_cluster"
        monkeypatch.setattr(starter, lambda *a, **k: pytest.fail("Ray was about to start"))
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "empty").mkdir()
    other = Geometry.of(tiny_config("llama", num_hidden_layers=5))
    save_modules({"indexer": IndexerStack(IndexerShape.of(IndexerConfig(), other), other)}, tmp_path / "foreign")
    spec = {
        "model": {"id": str(tmp_path / "model")},
        "distill": {"texts": [str(tmp_path / "text.txt")], "length": 96},
        "grid": {
            "methods": ["full", "knorm"],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 1,
            "haystack": str(tmp_path / "text.txt"),
        },
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path


MISTAKES = {
    "unknown key": ("eval", ["grid.rations=[0.5]"], "unknown key 'grid.rations'. Did you mean 'ratios'?"),
    "unknown method": ("eval", ["grid.methods=[snapvk]"], "Unknown method 'snapvk'. Did you mean 'snapkv'?"),
    "ratio": ("eval", ["grid.ratios=[1.5]"], "'grid.ratios.0': input should be less than 1, got 1.5"),
    "budget": ("eval", ["grid.budgets=[8 MiB, 512]"], "'grid.budgets.1': a share that is evicted lies in [0, 1)"),
    "a budget below a single token": ("eval", ["grid.budgets=[100 B]"], "The smallest budget here is '"),
    "unknown benchmark": ("eval", ["grid.benchmarks=[niah_singel_1]"], "niah_single_1"),
    "missing model path": ("eval", ["model.id=./nowhere/model"], "nowhere/model does not exist"),
    "missing model path, training": ("distill", ["model.id=./nowhere/model"], "nowhere/model does not exist"),
    "unknown model": ("distill", ["model.id=smollm"], "Unknown model 'smollm'. Built-in models: smollm2-135m-instruct"),
    "foreign checkpoint": (
        "eval",
        ["grid.methods=[full, indexer]", "indexer.checkpoint={folder}/foreign"],
        "was trained for another geometry (layers: trained for 5, model has 3)",
    ),
    "no checkpoint": ("eval", ["grid.methods=[full, indexer]"], "Use `indexmem run SPEC`, which trains"),
    "empty text folder": ("distill", ["distill.texts=[{folder}/empty]"], "empty"),
    "empty haystack": ("eval", ["grid.haystack={folder}/empty"], "empty"),
    "prompt longer than the context": ("eval", ["grid.length=4096"], "model's context of 1024 tokens"),
    "text longer than the context": ("distill", ["distill.length=4096"], "model's context of 1024 tokens"),
    "a second reading beyond the context": (
        "distill",
        ["distill.length=600", "target.chunk=500"],
        "reach 1108 positions, and the model's context has 1024 tokens. Use distill.length=516 or less, or "
        "target.chunk=416 or less.",
    ),
    "a second reading of one chunk beyond the context": (
        "distill",
        ["distill.length=600"],
        "reach 1200 positions, and the model's context has 1024 tokens. Use distill.length=512 or less",
    ),
    "probabilities of logits": (
        "distill",
        ["target.source=logits"],
        "use loss=kl, or source=logprobs or reconstruction",
    ),
    "a scale of its own for a second reading": ("distill", ["target.scale=model"], "use scale=head"),
    "a request without a second reading": (
        "distill",
        ["target.source=logprobs", "target.request=Again", "target.chunk=64"],
        "chunk, request has no effect without source=reconstruction",
    ),
    "an indexer that scores nothing": (
        "distill",
        ["indexer.pair_term=false", "indexer.token_term=0"],
        "use pair_term=true, or token_term=128",
    ),
    "nothing to share out": (
        "distill",
        ["indexer.scope=layer", "indexer.share=model"],
        "Use scope=kv_head, or share=head",
    ),
    "a shared budget for a method that decides": (
        "eval",
        ["grid.methods=[{{name: adakv, params: {{share: model}}}}]"],
        "share=model: the method decides by itself what each head keeps. Leave `share` out",
    ),
    "a shared budget of heads with one ranking": (
        "eval",
        ["grid.methods=[{{name: tova, params: {{share: layer}}}}]"],
        "Leave `share` out, or use a method that scores heads apart, such as 'snapkv'",
    ),
    "a floor of nothing": (
        "eval",
        ["grid.methods=[{{name: snapkv, params: {{floor: 0.5}}}}]"],
        "give share: model or share: layer with it",
    ),
    "prompt too short for a method": (
        "eval",
        ["grid.methods=[{{name: snapkv, params: {{window_size: 400}}}}]"],
        "at least 401",
    ),
    "twice the same": ("eval", ["grid.methods=[knorm, knorm]"], "lists a method twice"),
    "not an override": ("eval", ["grid.samples"], "not of the form a.b=value"),
    "a secret": ("eval", ["tracking.password=x"], "looks like a secret"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_exit_with_2_and_one_message(folder, capsys, name):
    verb, overrides, message = MISTAKES[name]
    code = main([verb, str(folder / "spec.yaml"), *(o.format(folder=folder) for o in overrides)])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.count("error: ") == 1
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_missing_spec_names_the_nearest(folder, capsys):
    assert main(["eval", str(folder / "spek.yaml")]) == 2
    assert "Did you mean" in capsys.readouterr().err


def test_dry_runs_print_a_plan_and_start_nothing(folder, capsys):
    assert main(["distill", str(folder / "spec.yaml"), "--dry-run"]) == 0
    assert main(["eval", str(folder / "spec.yaml"), "grid.methods=[full, indexer, knorm]", "--dry-run"]) == 0
    text = capsys.readouterr().err
    assert "3 methods, 9 cells, 1 samples of 640 tokens" in text
    assert "9 of 9 rows = 1 prefills" in text
    assert "budgets: 0%, 25%, 50%, 75%, 90%\n" in text
    assert not (folder / "runs").exists()


def test_overrides_may_stand_before_and_after_options(folder, capsys):
    spec, model = str(folder / "spec.yaml"), str(folder / "model")
    assert main(["eval", spec, "grid.samples=2", "--dry-run", "grid.ratios=[0.5]", "--model", model]) == 0
    assert "2 methods, 2 cells, 2 samples" in capsys.readouterr().err
    for wrong in (["--dry", "x=1"], ["--dry-run", "oops"]):
        with pytest.raises(SystemExit) as exit_:
            main(["eval", spec, *wrong, "--nonsense"])
        assert exit_.value.code == 2


def test_relative_paths_become_absolute_for_workers(folder, monkeypatch):
    monkeypatch.chdir(folder)
    spec = load("spec.yaml", ["model.id=model", "distill.texts=[text.txt, king-james]", "grid.haystack=./text.txt"])
    assert spec.model.id == str(folder / "model")
    assert [str(text) for text in spec.distill.texts] == [str(folder / "text.txt"), "king-james"]
    assert spec.grid.haystack == str(folder / "text.txt")


@pytest.mark.parametrize("action", ["install", "watch"])
def test_commands_that_are_gone_say_what_to_use(capsys, action):
    assert main(["nightly", action, "sweeps/nightly.yaml", "--kind", "cron", "--write"]) == 2
    assert "deploy/systemd has a timer" in capsys.readouterr().err


def test_help_is_fast_to_import_and_touches_no_heavy_library():
    code = "import sys; from indexmem.cli import main\ntry:\n main(['eval', '--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'ray', 'mlflow', 'transformers', 'huggingface_hub') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
