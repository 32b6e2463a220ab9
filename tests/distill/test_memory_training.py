"""The joint stage: every memory design learns from evictions of its base, and leaves the indexer to its own loss."""

import pytest
import torch
from tiny_models import tiny_backbone
from tiny_tokenizers import TEXT

from indexmem.config.load import validate
from indexmem.config.modules import IndexerConfig
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.registry import make_trainees
from indexmem.errors import UserError
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.models.attention import tapping

DESIGNS = {
    "slots": {"features": "slots", "dim": 8},
    "slots before RoPE": {"features": "slots", "dim": 8, "rotary": "pre"},
    "positive, joint": {"features": "positive", "dim": 16},
    "positive, mix": {"features": "positive", "dim": 16, "fusion": "mix", "gate_bias": 0.0},
    "linear, add": {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre", "dim": 16},
    "linear, model space": {"features": "linear", "fusion": "add", "input": "model", "value": "model", "dim": 16},
}


def make_spec(tmp_path, memory, **distilling):
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {
        "texts": [str(tmp_path / "text.txt")],
        "length": 160,
        "batch_size": 2,
        "modules": ["indexer", "memory"],
        "query_tokens": 40,
        "schedule": {"warmup": 2, "stable": 50, "decay": 8, "peak_lr": 0.02, "final_lr": 0.002},
        "checkpoint_every": 20,
    }
    return validate({"memory": memory, "distill": settings | distilling}, "test")


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_learns(tmp_path, name):
    spec = make_spec(tmp_path, DESIGNS[name])
    history = History(tmp_path / "history")
    distill(spec, LocalContext(tmp_path / "run"), history, tiny_backbone())
    rows = history.read()
    losses = [row["loss_memory-indexer"] for row in rows]
    assert all(row["grad_norm_memory-indexer"] > 0 for row in rows)
    if DESIGNS[name]["features"] == "slots":  # good from the first step on: a clustering needs no training
        # 1 is no memory at all; the piece that asks is another at each step, and some look for what is gone.
        assert max(losses) < 0.7 and sum(losses) / len(losses) < 0.3
    else:
        assert sum(losses[-10:]) < sum(losses[:10])
    loaded = MemoryStack.load(tmp_path / "run" / "step-00000060", "memory-indexer")
    assert loaded.shape.features == DESIGNS[name]["features"]


def test_gradients_of_all_weights_and_of_nothing_else(tmp_path):
    backbone = tiny_backbone()
    spec = make_spec(tmp_path, DESIGNS["slots"], evict_ratios=[0.5, 0.5])
    indexer, memory = make_trainees(spec, backbone.geometry)
    ids = torch.randint(2, 500, (2, 160))
    lengths = torch.tensor([160, 120])
    with (
        torch.no_grad(),
        tapping(backbone.model, lambda tap: losses.append(memory.layer_loss(tap, lengths, step))) as kw,
    ):
        losses, step = [], StepContext(0, 0)
        backbone.model.get_decoder()(ids, use_cache=False, **kw)
    torch.stack(losses).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in memory.parameters())
    assert all(p.grad is None for p in indexer.parameters())
    assert all(not p.requires_grad for p in backbone.model.parameters())


def test_padding_plays_no_part_in_the_loss(tmp_path):
    backbone = tiny_backbone()
    spec = make_spec(tmp_path, DESIGNS["slots"])
    ids = torch.randint(2, 500, (1, 160))
    padded = torch.cat((ids[:, :120], torch.full((1, 40), 7)), dim=1)

    def loss(batch, length):
        torch.manual_seed(0)
        _, memory = make_trainees(spec, backbone.geometry)
        losses = []
        visit = lambda tap: losses.append(memory.layer_loss(tap, torch.tensor([length]), StepContext(3, 0)))  # noqa: E731
        with torch.no_grad(), tapping(backbone.model, visit) as kwargs:
            backbone.model.get_decoder()(batch, use_cache=False, **kwargs)
        return torch.stack(losses)

    torch.testing.assert_close(loss(padded, 120), loss(ids[:, :120], 120), atol=1e-5, rtol=1e-5)


def test_shared_scores_serve_windows_of_several_lengths_side_by_side(tmp_path):
    """Layers that use the scores of the layer before, on a batch of two lengths: as each window alone."""
    backbone = tiny_backbone()
    # Not slots, whose metric follows all that it has seen.
    spec = make_spec(tmp_path, DESIGNS["positive, joint"])
    spec = spec.model_copy(update={"indexer": IndexerConfig(share_every=2)})
    _, memory = make_trainees(spec, backbone.geometry)
    ids, lengths = torch.randint(2, 500, (2, 160)), torch.tensor([160, 120])

    def losses(ids, lengths):
        found = []
        with (
            torch.no_grad(),
            tapping(backbone.model, lambda tap: found.append(memory.layer_loss(tap, lengths, StepContext(0, 0)))) as kw,
        ):
            backbone.model.get_decoder()(ids, use_cache=False, **kw)
        return torch.stack(found)

    alone = [losses(ids[[row], :length], lengths[[row]]) for row, length in enumerate(lengths)]
    torch.testing.assert_close(losses(ids, lengths), sum(alone) / 2)


def test_the_second_stage_starts_when_told_and_other_bases_train_too(tmp_path):
    memory = DESIGNS["slots"] | {"bases": ["indexer", "keydiff"]}
    spec = make_spec(tmp_path, memory, joint_from=30)
    history = History(tmp_path / "history")
    distill(spec, LocalContext(tmp_path / "run"), history, tiny_backbone())
    rows = history.read()
    assert [("loss_memory-keydiff" in row, "loss" in row) for row in rows] == [(i >= 30, True) for i in range(60)]
    before = IndexerStack.load(tmp_path / "run" / "step-00000060").state_dict()
    alone = make_spec(tmp_path, memory, modules=["indexer"])
    distill(alone, LocalContext(tmp_path / "alone"), History(tmp_path / "h2"), tiny_backbone())
    for name, tensor in IndexerStack.load(tmp_path / "alone" / "step-00000060").state_dict().items():
        assert torch.equal(tensor, before[name]), "the memory's loss must not reach the indexer"


def test_settings_that_do_not_fit_together_are_refused(tmp_path):
    with pytest.raises(UserError, match="fusion 'joint' needs positive masses"):
        make_spec(tmp_path, {"features": "linear", "fusion": "joint"})
    with pytest.raises(UserError, match="need features 'linear'"):
        make_spec(tmp_path, {"features": "slots", "value": "model"})


def test_an_indexer_that_only_evicts_lies_where_the_backbone_does(tmp_path):
    one_step = {"warmup": 0, "stable": 1, "decay": 0}
    trained = make_spec(tmp_path, DESIGNS["slots"], modules=["indexer"], schedule=one_step)
    distill(trained, LocalContext(tmp_path / "run"), History(tmp_path / "history"), tiny_backbone())
    spec = make_spec(tmp_path, DESIGNS["slots"], modules=["memory"])
    spec = spec.model_copy(update={"indexer": IndexerConfig(checkpoint=str(tmp_path / "run" / "step-00000001"))})
    (memory,) = make_trainees(spec, tiny_backbone().geometry, device="meta")
    (base,) = memory._base
    assert {p.device.type for p in base.indexers.parameters()} == {"meta"}
