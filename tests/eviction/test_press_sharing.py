"""Presses whose heads share a budget keep and answer what our engine does, and leave other caches alone."""

import copy
import json

import pytest
import torch
from kept_rows import kept_tokens
from kvpress import SnapKVPress
from press_cases import (
    LENGTH,
    MEMORIES,
    checkpoint,
    empty,
    engine_logits,
    engine_row,
    filled,
    geometry_of,
    plain,
    question_logits,
)
from tiny_models import random_ids, tiny_backbone
from tiny_tokenizers import TEXT
from transformers import DynamicCache, pipeline

from indexmem.engine.decode import DecodeRow, decode
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import CONFIG
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.press import IndexerPress, IndexMemPress, MemoryPress
from indexmem.models.attention import attention_layers

SHARED = ("layer", "model")
TERMS = [
    {"token_term": 8, "pair_term": True},
    {"token_term": 0, "pair_term": True},
    {"token_term": 8, "pair_term": False},
]
QUESTIONS = ["Page 5?", "Where?"]


def stays_of_engine(row):
    """Which pairs stay, bool [H, L] of each layer."""
    return [
        torch.zeros(kept_HK.shape[0], LENGTH, dtype=torch.bool).scatter_(1, kept_HK, True) for kept_HK in row.kept_HK
    ]


def stays_of_masks(model, batch=1):
    """The same of a model's modules, [B, H, L], as kvpress masks them."""
    stays = []
    for module in attention_layers(model):
        stays.append(torch.ones(batch, module.config.num_key_value_heads, LENGTH, dtype=torch.bool))
        if module.masked_key_indices is not None:
            stays[-1][module.masked_key_indices] = False
    return stays


@pytest.fixture
def shared_memory(tmp_path):
    """An IndexMemPress for the tiny Llama, one budget for all its heads; its hooks are gone after the test."""
    folder = checkpoint(tmp_path, geometry_of(), token_term=8)
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7, share="model")
    yield press
    press.detach()


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("share", SHARED)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_keeps_what_our_engine_keeps(tmp_path, family, share, terms):
    folder, model = checkpoint(tmp_path, tiny_backbone(family).geometry, **terms), plain(family)
    full = filled(model, None)
    for ratio, floor in ((0.3, 0.0), (0.7, 0.1), (0.9, 0.5), (0.99, 0.1)):
        row = engine_row(family, folder, "indexer", ratio, share=share, floor=floor)
        cache = filled(model, IndexerPress.from_pretrained(folder, ratio, share=share, floor=floor))
        ours = stays_of_engine(row)
        assert all(torch.equal(a[0], b) for a, b in zip(stays_of_masks(model), ours, strict=True))
        assert all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, full.layers)), "masked, not freed"
        lengths = {length for layer in range(3) for length in row.lengths(layer)}
        assert len(lengths) > 1 or ratio > 0.9, "heads keep different numbers"


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_an_even_budget_is_freed(tmp_path, family, terms):
    folder, model = checkpoint(tmp_path, tiny_backbone(family).geometry, **terms), plain(family)
    row = engine_row(family, folder, "indexer", 0.7, share="head")
    cache = filled(model, IndexerPress.from_pretrained(folder, 0.7, share="head"))
    for layer, module in enumerate(attention_layers(model)):
        assert module.masked_key_indices is None
        torch.testing.assert_close(cache.layers[module.layer_idx].keys[0], kept_tokens(row, layer)[0])


@pytest.mark.parametrize("share", SHARED)
def test_heads_that_share_keep_as_many_as_heads_that_do_not(tmp_path, share):
    """150 (1 - 0.9) is a little less than 15: kvpress keeps 14."""
    folder, model = checkpoint(tmp_path, geometry_of(), token_term=8), plain()
    even = filled(model, IndexerPress.from_pretrained(folder, 0.9, share="head")).layers[0].keys.shape[2]
    filled(model, IndexerPress.from_pretrained(folder, 0.9, share=share, floor=0.1))
    assert (even, sum(int(stays.sum()) for stays in stays_of_masks(model))) == (14, 6 * 14)


@pytest.mark.parametrize("kind", [IndexerPress, IndexMemPress])
@pytest.mark.parametrize("share", SHARED)
def test_a_batch_keeps_what_each_context_keeps(tmp_path, share, kind):
    folder, model = checkpoint(tmp_path, geometry_of(), token_term=8, share_every=2), plain()
    contexts = [random_ids(LENGTH, seed) for seed in (0, 1)]
    cache, press = DynamicCache(), kind.from_pretrained(folder, 0.7, share=share, floor=0.2)
    with torch.no_grad(), press(model):
        model.model(torch.tensor(contexts), past_key_values=cache)
    if kind is IndexerPress:
        stays = stays_of_masks(model, batch=2)
    else:
        press.detach()
        stays = [~cache.latent_memory.evicted_BHL[layer] for layer in range(3)]
        assert stays_of_masks(model, batch=2)[0].all(), "the hooks alone ignore what was evicted"
    for number, ids in enumerate(contexts):
        ours = stays_of_engine(engine_row("llama", folder, "indexer", 0.7, ids, share=share, floor=0.2))
        assert all(torch.equal(a[number], b) for a, b in zip(stays, ours, strict=True))


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("share", SHARED)
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_logits_equal_our_engines(tmp_path, family, share, memory):
    folder = checkpoint(tmp_path, geometry_of(family), memory, token_term=8)
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7, share=share)
    with_memory = question_logits(plain(family), filled(plain(family), press))
    press.detach()
    without = question_logits(plain(family), filled(plain(family), press.press))
    for logits, name in ((with_memory, "indexmem"), (without, "indexer")):
        ours = engine_logits(family, folder, name, 0.7, share=share, floor=0.1)
        torch.testing.assert_close(logits, ours, rtol=1e-3, atol=1e-3)
    assert (with_memory - without).abs().max() > 1e-2, "the memory takes part"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_pipeline_answers_equal_our_engines(tmp_path, family):
    """Short questions and no template around them: kvpress finds no key to mask with for many queries of 16 numbers."""
    folder, backbone = checkpoint(tmp_path, geometry_of(family), token_term=8), tiny_backbone(family)
    tokenizer = copy.deepcopy(backbone.tokenizer)
    tokenizer.chat_template = None
    kvpress = pipeline("kv-press-text-generation", model=plain(family), tokenizer=tokenizer, device="cpu")
    inputs = kvpress.preprocess(TEXT[:900], QUESTIONS, answer_prefix="", max_context_length=1000)
    context = inputs["context_ids"][0].tolist()
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7, share="model")
    answers = {}
    for name, used in (("indexmem", press), ("indexer", press.press)):
        row = engine_row(family, folder, name, 0.7, context, share="model", floor=0.1)
        rows = [DecodeRow(row, len(context), ids[0].tolist(), 12) for ids in inputs["questions_ids"]]
        ours = [
            backbone.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
            for answer in decode(backbone, rows, batch_bytes=2**34)
        ]
        answers[name] = kvpress(TEXT[:900], questions=QUESTIONS, press=used, max_new_tokens=12)["answers"]
        press.detach()
        assert answers[name] == ours
    assert answers["indexmem"] != answers["indexer"]


@pytest.mark.parametrize(
    ("trained", "share"),
    [
        ({"steps": 3}, "head"),
        ({"target": {"source": "logits"}}, "head"),
        ({"target": {"loss": "kl"}, "indexer": {"scope": "kv_head"}}, "head"),
        ({"target": {"loss": "bce"}}, "model"),
        ({"target": {"loss": "bce"}, "indexer": {"share": None}}, "model"),
        ({"target": {"loss": "bce"}, "indexer": {"share": "layer"}}, "layer"),
        ({"target": {"loss": "kl"}, "indexer": {"share": "model"}}, "model"),
    ],
)
@pytest.mark.parametrize("kind", [IndexerPress, IndexMemPress])
def test_shares_as_trained(tmp_path, trained, share, kind):
    folder = checkpoint(tmp_path / "a", geometry_of(), trained=trained, token_term=8)
    press = kind.from_pretrained(folder, compression_ratio=0.7)
    again = kind.from_pretrained(press.save_pretrained(tmp_path / "b"), compression_ratio=0.7)
    for used in (press, again):
        indexer = getattr(used, "press", used)
        assert indexer.selection.across == share and indexer.trained == trained
    assert filled(plain(), again).layers[0].keys.shape[2] == (int(LENGTH * 0.3) if share == "head" else LENGTH)
    if kind is IndexMemPress:
        again.detach()


def test_a_choice_is_of_the_press_not_of_its_folder(tmp_path):
    folder = checkpoint(tmp_path / "a", geometry_of(), trained={"target": {"loss": "bce"}})
    press = IndexerPress.from_pretrained(folder, 0.7, share="layer")
    again = IndexerPress.from_pretrained(press.save_pretrained(tmp_path / "b"), 0.7)
    assert (press.selection.across, again.selection.across) == ("layer", "model")


def test_checkpoints_from_before_budgets_were_shared(tmp_path):
    """Their shapes name no terms: pairs alone."""
    new = checkpoint(tmp_path / "a", geometry_of(), token_term=0)
    stays = filled(plain(), IndexerPress.from_pretrained(new, 0.7)).layers[1].keys
    config = json.loads((new / CONFIG).read_text())
    for name in ("token_term", "pair_term"):
        del config["modules"]["indexer"]["shape"][name]
    (new / CONFIG).write_text(json.dumps(config))
    press = IndexerPress.from_pretrained(new, 0.7)
    assert not press.selection.shares
    assert torch.equal(filled(plain(), press).layers[1].keys, stays)


def test_one_score_for_all_heads_cannot_be_shared_out(tmp_path):
    folder = checkpoint(tmp_path, geometry_of(), trained={"target": {"loss": "bce"}}, scope="layer")
    assert not IndexerPress.from_pretrained(folder, 0.5).selection.shares
    with pytest.raises(UserError, match="scope=kv_head"):
        IndexMemPress.from_pretrained(folder, 0.5, share="layer")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"share": "all"}, "'share'.*'head', 'layer' or 'model'.*'all'"),
        ({"floor": 1.5}, "'floor'.*1.5"),
        ({"share": "model", "floor": -0.1}, "'floor'.*-0.1"),
    ],
)
def test_wrong_values_are_named(tmp_path, wrong, message):
    with pytest.raises(UserError, match=message):
        IndexerPress.from_pretrained(checkpoint(tmp_path, geometry_of()), 0.5, **wrong)


@pytest.mark.parametrize("attention", ["eager", "indexmem"])
def test_attention_that_cannot_mask_is_refused_where_masks_are_needed(tmp_path, shared_memory, attention):
    model = plain("llama", attention)
    with pytest.raises(UserError, match=f"Attention '{attention}' cannot ignore"):
        filled(model, shared_memory.press)
    ours = engine_logits("llama", tmp_path, "indexmem", 0.7, share="model", floor=0.1)
    torch.testing.assert_close(question_logits(model, filled(model, shared_memory)), ours, rtol=1e-3, atol=1e-3)


def test_other_caches_are_untouched_while_hooks_are_registered(shared_memory):
    model = plain()
    other = filled(model, None, seed=3)
    expected = question_logits(model, copy.deepcopy(other))
    own = filled(model, shared_memory)
    assert torch.equal(question_logits(model, other), expected)
    once = question_logits(model, copy.deepcopy(own))
    assert torch.equal(question_logits(model, copy.deepcopy(own)), once), "reading changes no state"


def test_a_cache_filled_anew_forgets(shared_memory):
    model = plain()
    cache = filled(model, shared_memory)
    empty(cache)
    with torch.no_grad():
        model.model(torch.tensor([random_ids(LENGTH, 3)]), past_key_values=cache)
    assert not cache.latent_memory.evicted_BHL
    assert torch.equal(question_logits(model, cache), question_logits(model, filled(model, None, seed=3)))


def test_a_cache_filled_anew_evenly_frees_what_it_evicts(shared_memory):
    model = plain()
    cache = filled(model, shared_memory)
    empty(cache)
    shared_memory.press.share = "head"
    with torch.no_grad(), shared_memory(model):
        model.model(torch.tensor([random_ids(LENGTH)]), past_key_values=cache)
    assert torch.equal(question_logits(model, cache), question_logits(model, filled(model, shared_memory)))


@pytest.mark.parametrize("kind", ["indexer", "indexmem"])
def test_an_interrupted_prefill_leaves_nothing_behind(shared_memory, kind):
    model, press = plain(), shared_memory if kind == "indexmem" else shared_memory.press
    expected = question_logits(model, filled(model, press))

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = model.model.layers[2].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        filled(model, press, seed=3)
    handle.remove()
    assert torch.equal(question_logits(model, filled(model, press)), expected)


def test_scorers_of_kvpress_split_evenly(tmp_path):
    folder = checkpoint(tmp_path, geometry_of(), trained={"target": {"loss": "bce"}})
    press = MemoryPress(press=SnapKVPress(compression_ratio=0.6), memories=MemoryStack.load_for("snapkv", folder))
    cache = filled(plain(), press)
    press.detach()
    assert {layer.keys.shape[2] for layer in cache.layers} == {60}
    assert not cache.latent_memory.evicted_BHL
