"""Methods that read K, V and the last queries alone rank tokens alike, however many layers they are shown at once."""

import pytest
import torch
from method_zoo import every_method
from tiny_models import FULL_FAMILIES, random_ids, tiny_backbone

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import STACK_BYTES, TapStack, prefill
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.kvpress_scores import last_queries_attention
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import tapping

CONFIGS = [
    "full",
    "keydiff",
    "knorm",
    "lagkv",
    "cur",
    "streaming_llm",
    "tova",
    {"name": "snapkv", "params": {"window_size": 16}},
    {"name": "pyramidkv", "params": {"window_size": 16}},
    {"name": "adakv", "params": {"base": {"name": "snapkv", "params": {"window_size": 16}}}},
]
LENGTH = 300


def methods_for(backbone):
    configs = [MethodConfig.model_validate(config) for config in CONFIGS]
    return {config.name: make_method(config, MethodContext(backbone.geometry)) for config in configs}


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("chunk", [None, 100])
def test_rankings_do_not_depend_on_how_many_layers_are_shown_at_once(monkeypatch, family, chunk):
    backbone, shown = tiny_backbone(family), []
    methods = methods_for(backbone)
    score = methods["knorm"].score
    methods["knorm"].score = lambda tap: shown.append(tap) or score(tap)
    found = []
    for limit in (0, 2**30):
        monkeypatch.setitem(STACK_BYTES, "cpu", limit)
        found.append(prefill(backbone, random_ids(LENGTH), methods, sinks=4, chunk=chunk))
        assert not found[-1].errors
    layers = backbone.geometry.layers
    assert [tap.key_BHLd.shape[0] for tap in shown] == [1] * layers + [layers]
    for label, method in methods.items():
        for share in (0.1, 0.5, 0.9):
            alone, together = (
                method.compress(done.context, done.rankings_HL[label], share * LENGTH).kept_HK for done in found
            )
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True)), (label, share)


def test_a_stack_holds_no_more_than_its_limit(monkeypatch):
    backbone, shown = tiny_backbone(), []
    assert backbone.geometry.layers > 2
    method = methods_for(backbone)["knorm"]
    score = method.score
    method.score = lambda tap: shown.append(tap.key_BHLd.shape[0]) or score(tap)
    layer_bytes = backbone.geometry.kv_bytes(LENGTH, 4) // backbone.geometry.layers
    monkeypatch.setitem(STACK_BYTES, "cpu", 2 * layer_bytes)
    prefill(backbone, random_ids(LENGTH), {"knorm": method}, sinks=0)
    assert sum(shown) == backbone.geometry.layers
    assert max(shown) == 2


def test_only_what_was_asked_for_is_held():
    """Hidden states and older queries would be copies of the whole prefill's activations."""
    backbone = tiny_backbone()
    stack = TapStack(16, backbone.device)
    with torch.inference_mode(), tapping(backbone.model, stack.add) as kwargs:
        backbone.model.get_decoder()(torch.tensor([random_ids(LENGTH)]), use_cache=False, **kwargs)
    tap = stack.take()
    assert tap.hidden_BLD.untyped_storage().nbytes() == 0
    assert tap.query_BQLd.shape[2] == 16
    assert stack.take() is None


@pytest.mark.parametrize("window", [1, 7, 64])
def test_window_attention_equals_the_dense_one(window):
    backbone, taps = tiny_backbone(), []
    with torch.inference_mode(), tapping(backbone.model, taps.append) as kwargs:
        backbone.model.get_decoder()(
            torch.tensor([random_ids(100), random_ids(100, seed=1)]), use_cache=False, **kwargs
        )
    for tap in taps:
        query, key = tap.query_BQLd.double(), tap.key_BHLd.double()
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        logits = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        future = torch.ones(100, 100, dtype=torch.bool).triu(1)
        expected = logits.masked_fill(future, float("-inf")).softmax(-1)[:, :, -window:]
        torch.testing.assert_close(last_queries_attention(tap, window).double(), expected, atol=1e-6, rtol=1e-4)


def test_every_method_reads_no_more_than_it_says(tmp_path):
    """Scores of all that a layer shows equal those of K, V and the queries that the method asks for."""
    backbone, taps, compared = tiny_backbone(), [], set()
    with torch.inference_mode(), tapping(backbone.model, taps.append) as kwargs:
        backbone.model.get_decoder()(torch.tensor([random_ids(LENGTH)]), use_cache=False, **kwargs)
    for label, method in every_method(backbone.geometry, tmp_path).items():
        if method.last_queries is not None:
            stack = TapStack(method.last_queries, backbone.device)
            stack.add(taps[0])
            torch.testing.assert_close(method.score(stack.take()), method.score(taps[0]))
            compared.add(label)
    assert compared >= {"full", "keydiff", "knorm", "lagkv", "cur", "streaming_llm", "tova", "snapkv", "adakv"}
