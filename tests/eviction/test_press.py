"""The presses give in kvpress what our engine gives, and their folders hold all that they need."""

import re
from pathlib import Path

import pytest
import torch
from kvpress import SnapKVPress
from press_cases import (
    LENGTH,
    MEMORIES,
    SINKS,
    checkpoint,
    engine_logits,
    filled,
    geometry_of,
    hooks_of,
    plain,
    question_logits,
)
from tiny_models import random_ids, save_tiny_model, tiny_backbone, tiny_config
from tiny_tokenizers import TEXT
from transformers import AutoModelForCausalLM, pipeline

from indexmem.config.schema import MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import read_config, weights_hash
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.press import IndexerPress, IndexMemPress, MemoryPress
from indexmem.eviction.ranking import keep
from indexmem.eviction.selection import tokens_left

QUESTIONS = ["What does page 5 tell of?", "And where is the lantern, again?"]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_logits_equal_our_engines(tmp_path, family, memory):
    folder = checkpoint(tmp_path, geometry_of(family), memory)
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7)
    with_memory = question_logits(plain(family), filled(plain(family), press))
    press.detach()
    without = question_logits(plain(family), filled(plain(family), press.press))
    ours = engine_logits(family, folder, "indexmem", 0.7)
    torch.testing.assert_close(with_memory, ours, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(without, engine_logits(family, folder, "indexer", 0.7), rtol=1e-3, atol=1e-3)
    assert (with_memory - without).abs().max() > 100 * (with_memory - ours).abs().max(), "the memory takes part"


def test_any_scorer_takes_the_memory_trained_for_it(tmp_path):
    folder = checkpoint(tmp_path, geometry_of())
    press = MemoryPress(press=SnapKVPress(compression_ratio=0.6), memories=MemoryStack.load_for("snapkv", folder))
    theirs = question_logits(plain(), filled(plain(), press))
    press.detach()
    torch.testing.assert_close(theirs, engine_logits("llama", folder, "snapkv+memory", 0.6), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_pipeline_answers_equal_our_engines(tmp_path, family):
    """Several questions about one context: each is answered from the memory as it was after prefill."""
    folder, backbone = checkpoint(tmp_path, geometry_of(family)), tiny_backbone(family)
    kvpress = pipeline("kv-press-text-generation", model=plain(family), tokenizer=backbone.tokenizer, device="cpu")
    inputs = kvpress.preprocess(TEXT[:900], QUESTIONS, answer_prefix="", max_context_length=1000)
    context = inputs["context_ids"][0].tolist()
    method = make_method(MethodConfig(name="indexmem"), MethodContext(backbone.geometry, checkpoint=str(folder)))
    done = prefill(backbone, context, {"indexmem": method}, SINKS)
    row = method.compress(done.context, done.rankings_HL["indexmem"], done.context.tokens * (1 - 0.7))
    rows = [DecodeRow(row, len(context), ids[0].tolist(), 12) for ids in inputs["questions_ids"]]
    ours = [
        backbone.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        for answer in decode(backbone, rows, batch_bytes=2**34)
    ]
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7)
    theirs = kvpress(TEXT[:900], questions=QUESTIONS, press=press, max_new_tokens=12)["answers"]
    press.detach()
    forgetful = kvpress(TEXT[:900], questions=QUESTIONS, press=press.press, max_new_tokens=12)["answers"]
    assert theirs == ours
    assert theirs != forgetful


@pytest.mark.parametrize("settings", [{}, {"scope": "layer"}, {"share_every": 2}], ids=str)
@pytest.mark.parametrize("ratio", [0.3, 0.8, 0.99])
def test_keeps_what_our_engine_keeps(tmp_path, settings, ratio):
    backbone = tiny_backbone()
    folder = checkpoint(tmp_path, backbone.geometry, **settings)
    method = make_method(MethodConfig(name="indexer"), MethodContext(backbone.geometry, checkpoint=str(folder)))
    done = prefill(backbone, random_ids(LENGTH), {"indexer": method}, SINKS)
    cache = filled(plain(), IndexerPress.from_pretrained(folder, compression_ratio=ratio))
    for layer, ranking in enumerate(done.rankings_HL["indexer"]):
        kept_HK = keep(ranking, tokens_left(LENGTH, ratio))
        expected = done.context.keys_HLd[layer].gather(1, kept_HK[..., None].expand(-1, -1, 16))
        torch.testing.assert_close(cache.layers[layer].keys[0], expected)


def test_sinks_stay_and_can_be_turned_off(tmp_path):
    folder = checkpoint(tmp_path, geometry_of())
    full = filled(plain(), None)
    for sinks, equal in ((4, True), (0, False)):
        cache = filled(plain(), IndexerPress.from_pretrained(folder, compression_ratio=0.9, n_sink=sinks))
        first = [torch.equal(a.keys[:, :, :4], b.keys[:, :, :4]) for a, b in zip(cache.layers, full.layers)]
        assert all(first) is equal


@pytest.mark.parametrize("kind", [IndexerPress, IndexMemPress])
def test_evicting_nothing_is_the_plain_model(tmp_path, kind):
    expected = question_logits(plain(), filled(plain(), None))
    press = kind.from_pretrained(checkpoint(tmp_path, geometry_of()))
    assert torch.equal(question_logits(plain(), filled(plain(), press)), expected)
    if kind is IndexMemPress:
        press.detach()


def test_bfloat16_model(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config("llama"), attn_implementation="sdpa", dtype=torch.bfloat16)
    press = IndexMemPress.from_pretrained(checkpoint(tmp_path, geometry_of()), compression_ratio=0.7)
    logits = question_logits(model, filled(model, press))
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


def test_round_trip_is_exact(tmp_path):
    first = checkpoint(tmp_path / "a", geometry_of(), share_every=2)
    press = IndexMemPress.from_pretrained(first, compression_ratio=0.7)
    second = press.save_pretrained(tmp_path / "b")
    names = ("indexer", "memory-indexer")
    assert weights_hash(second, *names) == weights_hash(first, *names)
    assert read_config(second)["trained"] == {"steps": 3}
    assert set(read_config(second)["modules"]) == set(names)
    alone = press.press.save_pretrained(tmp_path / "c")
    assert weights_hash(alone, "indexer") == weights_hash(first, "indexer")
    assert IndexerPress.from_pretrained(alone).indexers.shape.share_every == 2


@pytest.mark.parametrize("kind", [IndexerPress, IndexMemPress])
def test_a_foreign_model_is_refused(tmp_path, kind):
    press = kind.from_pretrained(checkpoint(tmp_path, geometry_of(num_hidden_layers=2)), compression_ratio=0.5)
    with pytest.raises(UserError, match="layers: trained for 2, model has 3"), press(plain()):
        pass
    assert hooks_of(plain()) == 0


def test_the_pages_snippet_runs(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "kvpress.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    model = save_tiny_model(tmp_path / "model")
    folder = checkpoint(tmp_path / "press", geometry_of())
    for name, path in (("FOLDER", folder), ("HuggingFaceTB/SmolLM2-135M-Instruct", model)):
        assert f'"{name}"' in snippet
        snippet = snippet.replace(f'"{name}"', repr(str(path)))
    exec(snippet, {})
    assert capsys.readouterr().out.strip()
