"""A dry run starts nothing and fetches nothing, whatever is not on this machine."""

import os
import socket

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem import archives
from indexmem.cli import main
from indexmem.fetching import OFFLINE, NotAtHand, about_to_fetch, nothing_fetched
from indexmem.texts import documents

ELSEWHERE = {
    "a built-in model": ["model.id=smollm2-135m-instruct"],
    "a model of the hub": ["model.id=Qwen/Qwen3-8B", "model.dtype=bfloat16"],
    "built-in texts": ["model.id={folder}/model", "distill.texts=[king-james]", "grid.haystack=essays-heldout"],
    "texts of the hub": ["model.id={folder}/model", "distill.texts=[{{hub: org/name, revision: abc}}]"],
    "items of the hub": ["model.id={folder}/model", "grid.benchmarks=[longbench_qasper, aime25]"],
    "weights of the hub": ["model.id={folder}/model", "grid.methods=[full, {{name: kvzap, params: {{weights: a/b}}}}]"],
}
COMMANDS = {"run": [], "distill": [], "eval": [], "sweep": ["sweep.axes={indexer.token_term: [4, 8]}"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A home where nothing is yet, and a machine on which whatever starts or connects fails the test."""
    for name in ("INDEXMEM_HOME", "INDEXMEM_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    documents._built_in.cache_clear()
    monkeypatch.setattr(socket.socket, "connect", lambda *a: pytest.fail(f"a connection to {a[1:]}"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail(f"a look-up of {a[0]}"))
    monkeypatch.setattr(archives, "_download", lambda *a: pytest.fail("pip was about to fetch"))
    for verb in ("distill", "evaluate", "sweep"):
        monkeypatch.setattr(f"indexmem.commands.{verb}.ray_cluster", lambda *a, **k: pytest.fail("Ray was to start"))
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    spec = {
        "distill": {"texts": [str(tmp_path / "text.txt")], "length": 96, "workers": 1},
        "grid": {
            "methods": ["full", "indexer", "knorm"],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 2,
            "haystack": str(tmp_path / "text.txt"),
        },
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    yield tmp_path
    documents._built_in.cache_clear()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", ELSEWHERE)
def test_nothing_is_fetched_and_the_plan_is_there(folder, capsys, command, what):
    overrides = [text.format(folder=folder) for text in ELSEWHERE[what]]
    assert main([command, str(folder / "spec.yaml"), *COMMANDS[command], *overrides, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert command in ("distill", "sweep") or " cells, " in said
    assert command in ("eval", "run") or "4100 steps" in said
    looked_at = {"distill": ("model", "text"), "sweep": ("model", "text")}.get(command, ("",))
    if any(part in what for part in looked_at):
        assert "is not on this machine, and a dry run fetches nothing" in said
    assert not (folder / "runs").exists() and not (folder / "hub").exists()


def test_a_model_of_unknown_size_is_a_sentence(folder, capsys):
    for command in ("run", "distill", "eval"):
        assert main([command, str(folder / "spec.yaml"), "model.id=some/unknown", "--dry-run"]) == 1
        assert (
            "The model some/unknown is not on this machine, and a dry run fetches nothing. Without it"
            in capsys.readouterr().err
        )


def test_fetching_is_forbidden_only_inside(monkeypatch):
    monkeypatch.delenv(OFFLINE)
    with nothing_fetched():
        assert os.environ[OFFLINE] == "1"
        with pytest.raises(NotAtHand, match="The moon is not on this machine"):
            about_to_fetch("The moon")
    about_to_fetch("The moon")
    assert OFFLINE not in os.environ
