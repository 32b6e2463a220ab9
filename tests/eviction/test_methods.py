"""Our adapters keep exactly the tokens that kvpress' own presses keep, on its own hooks and cache."""

import pytest
import torch
from kvpress import (
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from method_zoo import every_method
from tiny_models import FULL_FAMILIES, random_ids, tiny_backbone, tiny_model
from transformers import DynamicCache

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import METHODS, make_method

PRESSES = {
    "snapkv": SnapKVPress,
    "pyramidkv": PyramidKVPress,
    "tova": TOVAPress,
    "keydiff": KeyDiffPress,
    "knorm": KnormPress,
    "expected_attention": ExpectedAttentionPress,
    "streaming_llm": StreamingLLMPress,
}
LENGTH = 230


def kvpress_cache(family, press, ids):
    model = tiny_model(family, "sdpa")
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        model.model(torch.tensor([ids]), past_key_values=cache)
    return cache


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("ratio", [0.25, 0.6])
def test_kept_tokens_equal_kvpress(family, name, ratio):
    ids = random_ids(LENGTH)
    backbone = tiny_backbone(family)
    method = make_method(MethodConfig(name=name), MethodContext(backbone.geometry))
    done = prefill(backbone, ids, {name: method}, sinks=0)
    theirs = kvpress_cache(family, PRESSES[name](compression_ratio=ratio), ids)
    for layer, kept in enumerate(
        method.compress(done.context, done.rankings_HL[name], done.context.tokens * (1 - ratio)).kept_HK
    ):
        index = kept[..., None].expand(-1, -1, done.context.keys_HLd[layer].shape[-1])
        ours = done.context.keys_HLd[layer].gather(1, index)
        expected = theirs.layers[layer].keys[0]
        assert ours.shape == expected.shape
        # kvpress leaves tokens in score order, we in text order: compare as sets of key vectors.
        for head in range(ours.shape[0]):
            distances = torch.cdist(ours[head], expected[head], compute_mode="donot_use_mm_for_euclid_dist")
            assert distances.min(dim=1).values.max() < 1e-4
            assert distances.min(dim=0).values.max() < 1e-4


def test_scoring_leaves_the_model_untouched():
    backbone = tiny_backbone()
    before = [dict(m.__dict__) | dict(m._modules) for m in backbone.model.modules()]
    method = make_method(MethodConfig(name="expected_attention"), MethodContext(backbone.geometry))
    prefill(backbone, random_ids(80), {"m": method}, sinks=4)
    assert [set(dict(m.__dict__) | dict(m._modules)) for m in backbone.model.modules()] == [set(b) for b in before]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_sinks_are_kept_by_every_method(family, tmp_path):
    backbone = tiny_backbone(family)
    methods = every_method(backbone.geometry, tmp_path)
    assert set(methods) == set(METHODS)
    done = prefill(backbone, random_ids(120), methods, sinks=4)
    assert not done.errors
    for name, method in methods.items():
        for kept in method.compress(done.context, done.rankings_HL[name], done.context.tokens * (1 - 0.9)).kept_HK:
            assert (kept[:, :4] == torch.arange(4)).all(), name


def test_a_method_that_cannot_score_is_reported_and_spares_the_others():
    backbone = tiny_backbone()
    names = ("snapkv", "knorm")
    methods = {n: make_method(MethodConfig(name=n), MethodContext(backbone.geometry)) for n in names}
    done = prefill(backbone, random_ids(30), methods, sinks=4)  # shorter than SnapKV's window
    assert list(done.errors) == ["snapkv"]
    assert len(done.rankings_HL["knorm"]) == backbone.geometry.layers


def test_random_is_deterministic_and_differs_by_layer_and_seed():
    backbone = tiny_backbone()
    context = MethodContext(backbone.geometry)
    build = lambda seed: make_method(MethodConfig(name="random", params={"seed": seed}), context)  # noqa: E731
    done = prefill(backbone, random_ids(60), {"a": build(0), "b": build(0), "c": build(1)}, sinks=0)
    assert torch.equal(done.rankings_HL["a"][0], done.rankings_HL["b"][0])
    assert not torch.equal(done.rankings_HL["a"][0], done.rankings_HL["c"][0])
    assert not torch.equal(done.rankings_HL["a"][0], done.rankings_HL["a"][1])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "snapvk"}, r"Unknown method 'snapvk'. Did you mean 'snapkv'\? Methods: full, indexer"),
        (
            {"name": "snapkv", "params": {"windowsize": 3}},
            "unknown parameter 'windowsize'. Allowed: window_size, kernel",
        ),
        ({"name": "full", "params": {"x": 1}}, "unknown parameter 'x'. Allowed: none"),
        ({"name": "indexer"}, "needs a trained checkpoint"),
    ],
)
def test_mistakes_are_named(config, message):
    with pytest.raises(UserError, match=message):
        make_method(MethodConfig(**config), MethodContext(tiny_backbone().geometry))
