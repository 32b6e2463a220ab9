"""The model card says what the files say; a model has its name when its weights are there."""

import json

import pytest

from indexmem.config.schema import ModelConfig
from indexmem.errors import UserError
from indexmem.models import assets
from indexmem.models.backbone import resolve
from indexmem_testbed.card import ship
from indexmem_testbed.cli import main
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.model import make_model, save_model

SCORES = {"samples": 200, "seed": 42, "scores": {"1024": {"niah_single_1": 1.0, "vt": 0.875}, "2048": {"vt": 0.5}}}


@pytest.fixture
def trained(tmp_path):
    config = PretrainConfig(
        architecture={"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 48, "max_positions": 1024},
        mixture={"vt": 3.0, "text": 1.0},
        seed=7,
    )
    record = {"step": 1234, "texts": {"essays-train": "abc"}, "metrics": {"loss": 0.25}}
    folder = tmp_path / "final"
    save_model(make_model(config.architecture, 0), folder, record | {"pretrain": config.model_dump(mode="json")})
    return folder


def test_the_card_is_filled_from_the_files(trained, tmp_path):
    (tmp_path / "scores.json").write_text(json.dumps(SCORES))
    card = (ship(trained, tmp_path / "testbed", tmp_path / "scores.json") / "README.md").read_text()
    assert "1234 steps of 65536 tokens, seed 7; 81 M tokens in all" in card
    assert "sweeps/testbed.yaml" in card and "sweeps/testbed-longer.yaml" not in card
    assert "vt 75%, text 25%" in card
    assert "| niah_single_1 | 100.0 |  |" in card and "| vt | 87.5 | 50.0 |" in card
    assert "200 samples of each task and length, seed 42" in card
    assert "0.1 M parameters (0.3 MiB" in card and "{" not in card
    assert "Not evaluated" in (ship(trained, tmp_path / "testbed", None) / "README.md").read_text()


def test_the_card_tells_of_each_training(trained, tmp_path):
    """A model that goes on from another one's weights carries what made those."""
    file = trained / "trained.json"
    last = json.loads(file.read_text())
    first = last | {"step": 400, "pretrain": last["pretrain"] | {"seed": 3, "mixture": {"cwe": 1.0}, "peak_lr": 0.5}}
    file.write_text(json.dumps(last | {"started_from": first}))
    card = (ship(trained, tmp_path / "testbed", None) / "README.md").read_text()
    assert "400 steps of 65536 tokens, seed 3; then 1234 steps of 65536 tokens, seed 7; 107 M tokens in all" in card
    assert "cwe 100%; then vt 75%, text 25%" in card
    assert "| peak learning rate | 0.5; then 0.002 |" in card
    assert "sweeps/testbed.yaml" in card and "sweeps/testbed-longer.yaml" in card


def test_what_cannot_be_shipped_is_refused(trained, tmp_path):
    with pytest.raises(UserError, match="holds no pre-trained model"):
        ship(tmp_path, tmp_path / "testbed", None)
    (tmp_path / "scores.json").write_text("{")
    with pytest.raises(UserError, match="Cannot read scores"):
        ship(trained, tmp_path / "testbed", tmp_path / "scores.json")
    assert not (tmp_path / "testbed").exists()


def test_a_model_has_its_name_when_its_weights_are_there(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "SHIPPED", tmp_path / "assets")
    (tmp_path / "assets" / "testbed").mkdir(parents=True)
    assert not assets.is_builtin("testbed")
    with pytest.raises(UserError, match="no weights of the model 'testbed'"):
        resolve(ModelConfig(id="testbed"))
    ship(trained, tmp_path / "assets" / "testbed", None)
    assert assets.model_names() == ["smollm2-135m-instruct", "testbed"]
    assert resolve(ModelConfig(id="testbed")) == str(tmp_path / "assets" / "testbed")


def test_mistakes_in_the_section_are_found_before_anything_starts(tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text("pretrain: {mixture: {niah_multikey: 1.0}}\n")
    assert main([str(spec), "--dry-run"]) == 2
    assert "pretrain.mixture names niah_multikey. Expected any of" in capsys.readouterr().err
    spec.write_text("pretrain: {stages: [{length: 256, share: 0.5}]}\n")
    assert main([str(spec), "--dry-run"]) == 2
    assert "sum to 0.5, not to 1" in capsys.readouterr().err
    spec.write_text("pretrain: {step_tokens: 300}\n")
    assert main([str(spec), "--dry-run"]) == 2
    assert "must be a multiple of the length 256" in capsys.readouterr().err
    spec.write_text("pretrain: {workers: 2}\n")
    assert main([str(spec), "--dry-run"]) == 2
    assert "'pretrain.workers' is no setting any more. Start so many processes: torchrun" in capsys.readouterr().err
