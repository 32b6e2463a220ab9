"""Models with sliding-window layers: eviction acts in the others alone, whoever evicts."""

import copy
import json

import pytest
import torch
from kept_rows import kept_tokens
from kvpress import (
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from press_cases import LENGTH, SINKS, checkpoint, engine_logits, filled, hooks_of, plain, question_logits
from tiny_models import FULL_LAYERS, SLIDING_FAMILIES, SLIDING_LAYERS, WINDOW, random_ids, tiny_backbone, tiny_model
from transformers import DynamicCache

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_geometry
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.press import IndexerPress, IndexMemPress, MemoryPress
from indexmem.models.attention import attention_layers, rotary_of
from indexmem.models.geometry import Geometry

FAMILY = "gemma3_text"
PRESSES = {
    "snapkv": SnapKVPress,
    "tova": TOVAPress,
    "keydiff": KeyDiffPress,
    "knorm": KnormPress,
    "expected_attention": ExpectedAttentionPress,
    "streaming_llm": StreamingLLMPress,
}


def prefilled(name, family=FAMILY, length=LENGTH, folder=None, sinks=0, **params):
    backbone = tiny_backbone(family)
    context = MethodContext(backbone.geometry, checkpoint=None if folder is None else str(folder))
    method = make_method(MethodConfig(name=name, params=params), context)
    done = prefill(backbone, random_ids(length), {name: method}, sinks)
    assert not done.errors
    return method, done.context, done.rankings_HL[name]


def assert_same_keys(row, cache):
    """kvpress leaves tokens in score order, we in text order: compare as sets of key vectors."""
    assert len(row.kept_HK) == len(FULL_LAYERS)
    for number, layer in enumerate(FULL_LAYERS):
        ours, theirs = kept_tokens(row, number)[0], cache.layers[layer].keys[0]
        assert ours.shape == theirs.shape
        distances = torch.cdist(ours, theirs, compute_mode="donot_use_mm_for_euclid_dist")
        assert max(distances.amin(dim=1).max(), distances.amin(dim=2).max()) < 1e-4


@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("ratio", [0.25, 0.6])
def test_kept_tokens_equal_kvpress_layer_by_layer(name, ratio):
    """kvpress' own hook on the layers with full attention, given the rotary embedding that belongs to them."""
    length = 230  # more is kept than SnapKV's window, whose tokens all tie
    method, context, rankings_HL = prefilled(name, length=length)
    model, press, cache = tiny_model(FAMILY, "sdpa"), PRESSES[name](compression_ratio=ratio), DynamicCache()
    modules = attention_layers(model)
    try:
        handles = [module.register_forward_hook(press.forward_hook, with_kwargs=True) for module in modules]
        for module in modules:
            module.__dict__["rotary_emb"] = rotary_of(model)
        with torch.no_grad():
            model.model(torch.tensor([random_ids(length)]), past_key_values=cache)
    finally:
        for module, handle in zip(modules, handles):
            handle.remove()
            del module.__dict__["rotary_emb"]
    assert_same_keys(method.compress(context, rankings_HL, length * (1 - ratio)), cache)


def test_kept_tokens_equal_a_press_where_kvpress_itself_skips_sliding_layers():
    method, context, rankings_HL = prefilled("knorm", "gemma3")
    cache = filled(plain("gemma3"), KnormPress(compression_ratio=0.6))
    assert_same_keys(method.compress(context, rankings_HL, LENGTH * 0.4), cache)
    assert [cache.layers[layer].keys.shape[2] for layer in SLIDING_LAYERS] == [LENGTH] * 4


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("length", [WINDOW - 5, WINDOW - 1, WINDOW, LENGTH])
def test_windows_hold_what_the_next_token_attends_to(family, length):
    method, context, rankings_HL = prefilled("knorm", family, length)
    full = DynamicCache()
    with torch.no_grad():
        tiny_model(family, "sdpa").get_decoder()(torch.tensor([random_ids(length)]), past_key_values=full)
    row = method.compress(context, rankings_HL, length * 0.5)
    held = min(length, WINDOW - 1)
    assert [(window.layer, window.size) for window in row.windows] == [(layer, WINDOW) for layer in SLIDING_LAYERS]
    for window in row.windows:
        torch.testing.assert_close(window.keys_HWd, full.layers[window.layer].keys[0, :, -held:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(window.values_HWd, full.layers[window.layer].values[0, :, -held:])
        assert window.keys_HWd.untyped_storage().nbytes() == window.keys_HWd.nbytes, "the rest is not kept alive"
    geometry, token = tiny_backbone(family).geometry, 2 * 2 * 16 * 4
    assert context.kv_bytes == geometry.kv_bytes(length, 4) == (3 * length + 4 * held) * token
    assert row.kv_bytes == (3 * (length // 2) + 4 * held) * token
    assert row.window_bytes == geometry.window_bytes(length, 4) == 4 * held * token


def test_methods_over_layers_see_those_with_full_attention_alone():
    budgets = {}
    for family in (FAMILY, "llama"):  # both have three such layers
        method, context, rankings_HL = prefilled("pyramidkv", family)
        row = method.compress(context, rankings_HL, LENGTH * 0.5)
        budgets[family] = [kept.shape[1] for kept in row.kept_HK]
    assert budgets[FAMILY] == budgets["llama"]
    assert len(set(budgets[FAMILY])) == 3
    _, _, rankings_HL = prefilled("running_mean", base="knorm")
    assert len(rankings_HL) == 3
    assert all(torch.equal(ranking, rankings_HL[0]) for ranking in rankings_HL)
    xkv, context, rankings_HL = prefilled("xkv", group=2)
    restored = xkv.compress(context, rankings_HL, LENGTH * 0.5)
    assert len(restored.keys_HLd) == 3
    assert restored.kv_bytes - restored.window_bytes <= 0.5 * (context.kv_bytes - restored.window_bytes)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"share_every": 2}], ids=str)
def test_presses_keep_what_our_engine_keeps(tmp_path, family, settings):
    folder = checkpoint(tmp_path, tiny_backbone(family).geometry, **settings)
    method, context, rankings_HL = prefilled("indexer", family, folder=folder, sinks=SINKS)
    row = method.compress(context, rankings_HL, LENGTH * 0.3)
    full = filled(plain(family), None)
    memories = MemoryStack.load_for("snapkv", folder)
    presses = [
        IndexerPress.from_pretrained(folder, compression_ratio=0.7),
        IndexMemPress.from_pretrained(folder, compression_ratio=0.7),
        MemoryPress(press=SnapKVPress(compression_ratio=0.7), memories=memories),
    ]
    for number, press in enumerate(presses):
        cache = filled(plain(family), press)
        for layer in SLIDING_LAYERS:
            assert torch.equal(cache.layers[layer].keys, full.layers[layer].keys)
        if number < 2:
            assert_same_keys(row, cache)
        if number > 0:
            assert tuple(cache.latent_memory.states) == FULL_LAYERS
            assert hooks_of(plain(family)) == len(FULL_LAYERS)
            press.detach()
    assert hooks_of(plain(family)) == 0


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("share", ["head", "model"])
def test_a_question_after_a_press_is_answered_as_by_our_engine(tmp_path, family, share):
    """Six tokens at once, as kvpress' pipeline feeds them: the mask is as long as the first, sliding layer."""
    folder = checkpoint(tmp_path, tiny_backbone(family).geometry, token_term=8)
    model = copy.deepcopy(plain(family))  # masks stay fitted
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7, share=share)
    for name, used in (("indexmem", press), ("indexer", press.press)):
        theirs = question_logits(model, filled(model, used))
        ours = engine_logits(family, folder, name, 0.7, share=share, floor=0.1)
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
        press.detach()


def test_masks_that_fit_are_left_alone(tmp_path):
    folder = checkpoint(tmp_path, tiny_backbone(FAMILY).geometry)
    model = copy.deepcopy(plain(FAMILY))
    before = question_logits(model, filled(model, None))
    press = IndexerPress.from_pretrained(folder, compression_ratio=0.0)
    for _ in range(2):
        filled(model, press)
    assert torch.equal(question_logits(model, filled(model, None)), before)
    assert [len(layer.self_attn._forward_pre_hooks) for layer in model.get_decoder().layers] == [0, 1, 0, 0, 1, 1, 0]


def test_trained_modules_count_layers_with_full_attention(tmp_path):
    geometry = tiny_backbone(FAMILY).geometry
    folder = checkpoint(tmp_path, geometry)
    assert len(IndexerStack.load(folder)) == len(MemoryStack.load_for("indexer", folder)) == 3
    assert IndexerStack.load(folder).geometry == geometry
    check_geometry(folder, tiny_backbone("gemma3").geometry)
    with pytest.raises(UserError, match="layers: trained for 3, model has 2"):
        check_geometry(folder, Geometry(**geometry.to_dict() | {"layers": 2}))


def test_memories_scale_logits_as_the_backbone_does(tmp_path):
    folder = checkpoint(tmp_path, tiny_backbone(FAMILY).geometry)
    modules = attention_layers(tiny_model(FAMILY))
    assert [memory.scaling for memory in MemoryStack.load_for("snapkv", folder)] == [
        module.scaling for module in modules
    ]
    assert modules[0].scaling != 16**-0.5


def test_checkpoints_from_before_sliding_windows_load(tmp_path):
    folder = checkpoint(tmp_path, tiny_backbone("llama").geometry)
    config = json.loads((folder / "config.json").read_text())
    for name in ("sliding_layers", "window", "query_scalar"):
        del config["geometry"][name]
    (folder / "config.json").write_text(json.dumps(config))
    check_geometry(folder, tiny_backbone("llama").geometry)
    assert IndexerStack.load(folder).geometry == tiny_backbone("llama").geometry
