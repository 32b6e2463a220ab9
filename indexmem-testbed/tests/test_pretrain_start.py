"""A pre-training that begins with another one's weights: which they are, what is refused, and what is told of them."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from indexmem.distill.history import History
from indexmem.errors import UserError
from indexmem.models.assets import shipped_models
from indexmem_testbed.config import PretrainConfig, load_pretraining
from indexmem_testbed.local import RankContext
from indexmem_testbed.loop import new_module, pretrain
from indexmem_testbed.model import make_model, read_trained, save_model
from indexmem_testbed.start import load_start
from indexmem_testbed.workflow import check_pretrain

CPU = torch.device("cpu")
ARCHITECTURE = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 48, "max_positions": 1024}


@pytest.fixture
def first(tmp_path):
    folder = tmp_path / "first"
    save_model(make_model(PretrainConfig(architecture=ARCHITECTURE).architecture, 5), folder, {"step": 77})
    return folder


def config_from(folder: Path | str, **changes):
    settings = {"architecture": ARCHITECTURE, "texts": ("essays-train",), "start_from": str(folder), "steps": 1}
    stages = [{"length": 64, "share": 1.0, "dense": 0.5}]
    return PretrainConfig(**settings | {"stages": stages, "step_tokens": 256, "evaluate_samples": 0} | changes)


def test_training_begins_with_the_weights_as_they_were_saved(first):
    saved = make_model(PretrainConfig(architecture=ARCHITECTURE).architecture, 5).state_dict()
    begun = new_module(config_from(first, seed=9), CPU).model.state_dict()
    assert begun.keys() == saved.keys()
    for name, tensor in begun.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, saved[name].bfloat16().float()), name


def test_the_model_tells_what_it_was_trained_from(first, tmp_path):
    (tmp_path / "second").mkdir()
    config = config_from(first)
    pretrain(config, RankContext(tmp_path / "second"), History(tmp_path / "history"), new_module(config, CPU))
    trained = read_trained(tmp_path / "second" / "step-00000001")
    assert trained["started_from"] == {"step": 77}
    assert "start_from" not in trained["pretrain"], "a path of the machine that trained it"


def test_what_it_cannot_begin_with_is_refused_before_anything_starts(first, tmp_path):
    spec = load_pretraining("sweeps/testbed.yaml", [f"pretrain.start_from={first}"])
    with pytest.raises(UserError, match=r"hidden_size is 32, not 256.*Set pretrain.architecture"):
        check_pretrain(spec)
    with pytest.raises(UserError, match=r"start_from=nothing: nothing/model.safetensors is missing.*testbed"):
        check_pretrain(load_pretraining("sweeps/testbed.yaml", ["pretrain.start_from=nothing"]))
    check_pretrain(load_pretraining("sweeps/testbed.yaml", ["pretrain.start_from=testbed"]))


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.json", b"", "is damaged: Expecting value"),
        ("config.json", b"[]", "expected an object"),
        ("model.safetensors", b"", "is damaged: "),
        ("model.safetensors", safetensors.torch.save({"z": torch.ones(1)}), "lacks tensors or has others, model.embed"),
        (
            "model.safetensors",
            safetensors.torch.save({"model.norm.weight": torch.ones(3)}),
            "is damaged: .*size mismatch for model.norm.weight",
        ),
    ],
)
def test_a_damaged_model_is_named(first, file, content, complaint):
    (first / file).write_bytes(content)
    with pytest.raises(UserError, match=rf"(?s){first / file} .*{complaint}.*Copy the folder again"):
        load_start(make_model(PretrainConfig(architecture=ARCHITECTURE).architecture, 6), first)


def test_a_damaged_record_is_named(first):
    (first / "trained.json").write_text("{")
    with pytest.raises(UserError, match=r"trained\.json is damaged"):
        read_trained(first)


def test_the_spec_of_the_shipped_weights_is_what_their_record_says():
    trained = read_trained(shipped_models()["testbed"])
    speed = {"loaders", "compile", "workers", "use_gpu", "max_failures"}  # the last three were settings once
    for record, spec in ((trained["started_from"], "testbed"), (trained, "testbed-longer")):
        asked = load_pretraining(f"sweeps/{spec}.yaml", []).pretrain.model_dump(
            mode="json", exclude={"start_from", "loaders", "compile"}
        )
        assert {key: value for key, value in record["pretrain"].items() if key not in speed} == asked
