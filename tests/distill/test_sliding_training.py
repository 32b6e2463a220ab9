"""Training on a model with sliding-window layers: every module teaches and learns in the others alone."""

import pytest
import torch
from tiny_models import FULL_LAYERS, SLIDING_FAMILIES, random_ids, tiny_backbone, tiny_model
from tiny_tokenizers import TEXT

from indexmem.config.load import validate, with_overrides
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.module import DistillModule
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.registry import make_trainees
from indexmem.eviction.checkpoint import check_geometry
from indexmem.eviction.indexer import IndexerStack

STEP = StepContext(5, 0)


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return validate(
        {
            "indexer": {"pair_term": True},
            "memory": {"dim": 8},
            "distill": {
                "texts": [str(tmp_path / "text.txt")],
                "length": 96,
                "batch_size": 2,
                "modules": ["indexer", "memory", "locret"],
                "query_tokens": 24,
                "schedule": {"warmup": 2, "stable": 60, "decay": 8, "peak_lr": 0.02, "final_lr": 0.002},
            },
        },
        "test",
    )


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_losses_and_gradients_of_the_layers_with_full_attention(spec, family, monkeypatch):
    backbone = tiny_backbone(family)
    trainees = make_trainees(spec, backbone.geometry)
    seen = []
    for trainee in trainees:
        assert len(trainee.trained) == len(FULL_LAYERS)
        real = trainee.layer_loss

        def layer_loss(tap, lengths_B, step, real=real):
            seen.append((tap.layer, tap.module.layer_idx))
            return real(tap, lengths_B, step)

        monkeypatch.setattr(trainee, "layer_loss", layer_loss)
    ids = torch.tensor([random_ids(90), random_ids(70, seed=1) + [0] * 20])
    losses = DistillModule(backbone, trainees, spec.target)(ids, torch.tensor([90, 70]), STEP)
    assert losses.shape == (3, 3)
    assert set(seen) == set(enumerate(FULL_LAYERS))
    losses.sum().backward()
    indexers = trainees[0].trained
    assert all(parameter.grad.abs().sum() > 0 for parameter in indexers.parameters())
    assert all(parameter.grad is None for parameter in backbone.model.parameters())


def test_the_target_is_the_attention_of_the_layer_with_full_attention(spec, monkeypatch):
    """Rows of the model's own attention weights, from transformers' eager attention."""
    backbone, targets = tiny_backbone("gemma3_text"), []
    spec = with_overrides(spec, ["target.source=logprobs", "target.loss=kl"])
    trainee = make_trainees(spec, backbone.geometry)[0]

    def keep_target(target_BGT, *args):
        targets.append(target_BGT)
        return torch.zeros(1, requires_grad=True)

    monkeypatch.setattr("indexmem.distill.trainees.indexer.LOSSES", {"kl": keep_target})
    ids = torch.tensor([random_ids(90)])
    DistillModule(backbone, [trainee])(ids, torch.tensor([90]), STEP)
    with torch.no_grad():
        weights = tiny_model("gemma3_text", "eager")(ids, use_cache=False, output_attentions=True).attentions
    assert len(targets) == len(FULL_LAYERS)
    for target, layer in zip(targets, FULL_LAYERS):
        expected = weights[layer][0].log().unflatten(0, (2, 2)).amax(dim=(1, 2))  # over the group, over queries
        torch.testing.assert_close(target[0], expected, atol=1e-3, rtol=1e-3)


def test_training_learns_and_its_checkpoint_fits_the_model(spec, tmp_path):
    backbone, history = tiny_backbone("gemma3_text"), History(tmp_path / "history")
    spec = with_overrides(spec, ["target.loss=kl"])  # bce also counts the entropy of its targets
    distill(spec, LocalContext(tmp_path / "run"), history, backbone)
    losses = [row["loss"] for row in history.read()]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    folder = tmp_path / "run" / "step-00000070"
    check_geometry(folder, backbone.geometry)
    assert IndexerStack.load(folder).geometry == backbone.geometry
