"""Gradients taken layer by layer: the same as of one backward pass, and nothing of a layer is kept."""

import gc
import weakref

import pytest
import torch
from tiny_models import tiny_config
from tiny_tokenizers import tiny_tokenizer
from transformers import AutoModelForCausalLM

from indexmem.config.load import validate
from indexmem.distill.module import DistillModule, settle
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.registry import make_trainees
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry


def test_backward_only_scales_the_gradients_that_were_taken():
    weights = [torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)]
    unused = torch.randn(2, requires_grad=True)
    inputs = torch.randn(3)
    kept_alive = weakref.ref(inputs)
    loss = ((weights[0] * inputs).sum().square() + weights[1].exp().sum()) / 2
    exact = torch.autograd.grad(loss, weights, retain_graph=True)
    settled = settle(loss, [*weights, unused])
    assert settled.item() == loss.item()
    del loss, inputs
    gc.collect()
    assert kept_alive() is None
    (3 * settled).backward()
    for weight, gradient in zip(weights, exact):
        torch.testing.assert_close(weight.grad, 3 * gradient)
    assert unused.grad is None


@pytest.mark.parametrize("share_every", [1, 2])
def test_a_step_has_the_gradients_of_one_backward_pass(monkeypatch, share_every):
    """Layers that share an indexer need what the first of them computed until the last has its loss."""
    register_attention()
    torch.manual_seed(0)
    config = tiny_config("llama")
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME).eval().requires_grad_(False)
    backbone = Backbone(model, tiny_tokenizer(), Geometry.of(config), "tiny")
    spec = validate({"indexer": {"share_every": share_every, "pair_term": True}}, "test")
    module = DistillModule(backbone, make_trainees(spec, backbone.geometry), spec.target)
    ids, lengths = torch.randint(0, config.vocab_size, (2, 40)), torch.tensor([40, 23])
    weight_ML = torch.rand(1, backbone.geometry.layers)

    def gradients() -> list[torch.Tensor]:
        losses_ML = module(ids, lengths, StepContext(0, 0))
        return list(torch.autograd.grad((losses_ML * weight_ML).sum(), list(module.parameters())))

    found = gradients()
    monkeypatch.setattr("indexmem.distill.module.settle", lambda loss, parameters, retain_graph: loss)
    for one, other in zip(found, gradients(), strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().sum() > 0
