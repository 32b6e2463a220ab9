"""What a packed row teaches is what the same documents teach as a padded batch."""

import pytest
import torch
from tiny_models import random_ids, tiny_backbone, tiny_config
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.config.load import validate, with_overrides
from indexmem.config.schema import ModelConfig
from indexmem.distill.checks import check_distill
from indexmem.distill.module import DistillModule
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.registry import make_trainees
from indexmem.errors import UserError
from indexmem.models.backbone import check_packing

LENGTHS = [90, 70, 90, 41]


def losses_and_gradients(spec, backbone, ids_BL, packed):
    torch.manual_seed(0)
    module = DistillModule(backbone, make_trainees(spec, backbone.geometry), spec.target)
    losses = module(ids_BL, torch.tensor(LENGTHS), StepContext(3, seed=0), packed)
    losses.sum().backward()
    state = dict(module.named_buffers())
    return losses.detach(), {name: p.grad for name, p in module.named_parameters()}, state


DISTILL = {"modules": ["indexer", "memory", "locret"], "query_tokens": 12}
REQUEST = "Again"
ONCE = {"source": "logprobs"}
SPECS = {
    "slots": {"target": ONCE, "memory": {"dim": 8, "bases": ["indexer", "snapkv"]}, "distill": DISTILL},
    "positive": {
        "target": ONCE,
        "memory": {"features": "positive", "dim": 16, "rotary": "pre"},
        "distill": DISTILL,
    },
    "shared indexer": {"target": ONCE, "indexer": {"share_every": 2, "pair_term": True}},
    "read twice": {
        "indexer": {"pair_term": True},
        "target": {"request": REQUEST, "chunk": 32},
        "memory": {"dim": 8, "bases": ["indexer", "snapkv"]},
        "distill": DISTILL,
    },
}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("name", SPECS)
def test_losses_gradients_and_statistics_equal_those_of_the_padded_batch(family, name):
    spec = validate(SPECS[name], "test")
    backbone = tiny_backbone(family)
    documents = [random_ids(length, seed=length) for length in LENGTHS]
    padded = torch.tensor([ids + [7] * (max(LENGTHS) - len(ids)) for ids in documents])
    expected, its_gradients, its_state = losses_and_gradients(spec, backbone, padded, packed=False)
    row = torch.tensor([[token for ids in documents for token in ids]])
    losses, gradients, state = losses_and_gradients(spec, backbone, row, packed=True)
    assert losses.shape[1] == 3 and (losses > 0).all()
    torch.testing.assert_close(losses, expected, rtol=2e-4, atol=1e-6)
    for name, gradient in gradients.items():
        assert gradient is not None and gradient.abs().max() > 0, name
        torch.testing.assert_close(
            gradient, its_gradients[name], rtol=1e-3, atol=1e-3 * float(gradient.abs().max()), msg=name
        )
    for name, buffer in state.items():
        torch.testing.assert_close(buffer, its_state[name], rtol=1e-4, atol=1e-5, msg=name)


def test_positions_that_depend_on_the_longest_document_are_refused(tmp_path):
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    settings = {"rope_scaling": rope, "original_max_position_embeddings": 64}
    tiny_config("phi3", **settings).save_pretrained(tmp_path)
    check_packing(ModelConfig(id=str(tmp_path)), 64)
    with pytest.raises(UserError, match=r"more than 64 tokens.*distill.length=64 or less, or distill.packing=false"):
        check_packing(ModelConfig(id=str(tmp_path)), 65)
    check_packing(ModelConfig(id=str(tmp_path)), 40, again=24)
    with pytest.raises(UserError, match=r"40 tokens ends at position 65.*more than 64.*a smaller distill.length or"):
        check_packing(ModelConfig(id=str(tmp_path)), 40, again=25)
    tiny_config("llama").save_pretrained(tmp_path)
    check_packing(ModelConfig(id=str(tmp_path)), 1000, again=1000)


def test_a_second_reading_counts_where_positions_of_a_row_depend_on_the_longest(tmp_path):
    """Packed or not: a row holds both readings."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    tiny_config("phi3", rope_scaling=rope, original_max_position_embeddings=64).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {"texts": [str(tmp_path / "text.txt")], "length": 40}
    spec = validate({"model": {"id": str(tmp_path / "model")}, "distill": settings}, "test")
    for overrides in ([], ["distill.packing=true"]):
        with pytest.raises(UserError, match="second reading of 40 tokens ends at position 80"):
            check_distill(with_overrides(spec, overrides))
    check_distill(with_overrides(spec, ["target.chunk=16"]))  # 40 + 16 + 8
    check_distill(with_overrides(spec, ["target.source=logprobs"]))
    with pytest.raises(UserError, match="ends at position 66"):  # two tokens of a request
        check_distill(with_overrides(spec, ["target.chunk=16", f"target.request={REQUEST}"]))
