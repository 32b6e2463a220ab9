"""Decoding with sliding-window layers: texts equal a slow reference; memory and budgets act in the other layers."""

from dataclasses import replace

import pytest
import torch
from dense_reference import dense_attention
from hypothesis import given
from hypothesis import strategies as st
from masked_reference import assert_greedy, gone_after_prefill
from press_cases import LENGTH, MEMORIES, checkpoint, engine_logits, filled, noisy, plain
from tiny_models import FULL_LAYERS, SLIDING_FAMILIES, WINDOW, random_ids, tiny_backbone, tiny_config, tiny_model
from transformers import AutoModelForCausalLM

from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression, Recompression
from indexmem.engine.rings import WindowRings
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.context import RowCache, Window
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.press import IndexMemPress
from indexmem.models.attention import ATTENTION_NAME
from indexmem.models.geometry import Geometry

FAMILY, PLENTY = "gemma3_text", 2**34
LENGTHS = (150, WINDOW + 10, WINDOW - 6)  # beyond the window; about to leave it; within it with question and answer


@pytest.fixture(autouse=True)
def no_end(monkeypatch):
    """Answers run to their limit."""
    for family in SLIDING_FAMILIES:
        monkeypatch.setattr(tiny_model(family).generation_config, "eos_token_id", [])


def methods_for(family, names, folder=None):
    context = MethodContext(tiny_backbone(family).geometry, checkpoint=None if folder is None else str(folder))
    return {name: make_method(MethodConfig(name=name), context) for name in names}


def row_of(family, method, length, ratio, question, limit, sample=0):
    done = prefill(tiny_backbone(family), random_ids(length, sample), {"m": method}, sinks=4)
    assert not done.errors
    cache = method.compress(done.context, done.rankings_HL["m"], length * (1 - ratio))
    return DecodeRow(cache, length, question, limit)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_text_equals_a_forward_pass_that_masks_evicted_keys(family):
    """Rows that are ragged in context, question, limit, and kept tokens, all in one batch."""
    rows, samples = [], []
    for sample, length in enumerate(LENGTHS):
        question = random_ids(5 + 11 * sample, seed=10 + sample)
        for name, method in methods_for(family, ("full", "knorm", "random", "streaming_llm")).items():
            for ratio in (0.0,) if name == "full" else (0.3, 0.8):
                rows.append(row_of(family, method, length, ratio, question, 20 - sample, sample))
                samples.append(sample)
    answers = decode(tiny_backbone(family), rows, PLENTY)
    for row, sample, answer in zip(rows, samples, answers):
        total = row.context_tokens + len(row.question_ids) + len(answer.token_ids)
        gone = [gone_after_prefill(kept_HK, row.context_tokens, total) for kept_HK in row.cache.kept_HK]
        context = random_ids(row.context_tokens, sample)
        assert_greedy(family, context, row.question_ids, answer.token_ids, gone)
    assert len({tuple(answer.token_ids[:15]) for answer in answers}) > len(LENGTHS), "eviction must change texts"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_the_full_cache_gives_what_transformers_generates(family, length):
    (method,) = methods_for(family, ["full"]).values()
    row = row_of(family, method, length, 0.0, random_ids(30, seed=3), 2 * WINDOW)
    ids = torch.tensor([random_ids(length) + row.question_ids])
    model = tiny_model(family, "sdpa")
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2 * WINDOW, do_sample=False, eos_token_id=-1
    )
    (answer,) = decode(tiny_backbone(family), [row], PLENTY)
    assert answer.token_ids == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_any_model_with_both_kinds_of_layers_gives_what_transformers_generates(family):
    torch.manual_seed(0)
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ours, theirs = (
        AutoModelForCausalLM.from_config(tiny_config(family, **windows), attn_implementation=name).eval()
        for name in (ATTENTION_NAME, "sdpa")
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    ours.load_state_dict(theirs.state_dict())
    backbone = replace(tiny_backbone(), model=ours, geometry=Geometry.of(ours.config))
    method = make_method(MethodConfig(name="full"), MethodContext(backbone.geometry))
    done = prefill(backbone, random_ids(90), {"full": method}, sinks=4)
    question = random_ids(9, seed=3)
    row = DecodeRow(method.compress(done.context, done.rankings_HL["full"], 90), 90, question, 30)
    ids = torch.tensor([random_ids(90) + question])
    expected = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, eos_token_id=-1
    )
    (answer,) = decode(backbone, [row], PLENTY)
    assert len(row.cache.kept_HK) == 1 and len(row.cache.windows) == 2
    assert answer.token_ids == expected[0, ids.shape[1] :].tolist()


def test_text_equals_the_reference_when_the_cache_is_compressed_while_decoding(monkeypatch):
    """What each compression drops is gone for the queries after it; windows go on as ever."""
    family, length, limit = FAMILY, 90, 70
    config = EvictionConfig(decode_budget=48, decode_every=16, decode_window=8, sinks=4)
    question = random_ids(9, seed=4)
    (method,) = methods_for(family, ["knorm"]).values()
    done = prefill(tiny_backbone(family), random_ids(length), {"m": method}, sinks=4)
    cache = method.compress(done.context, [ranking[:, :48] for ranking in done.rankings_HL["m"]], length * 0.6)
    total = length + len(question) + limit
    gone = [gone_after_prefill(kept_HK, length, total) for kept_HK in cache.kept_HK]
    real = Recompression._keep

    def keep(self, members, chosen, row, layer, key_HTd, value_HTd):
        index_HK, lengths_H = real(self, members, chosen, row, layer, key_HTd, value_HTd)
        now = self._next_position[row] + key_HTd.shape[1] - held[layer]
        held[layer] = index_HK.shape[1]
        dropped_HT = gone[layer] > total
        dropped_HT[:, now:] = False
        dropped_HT.scatter_(1, self._held[row][layer].position_HT, False)
        gone[layer][dropped_HT] = now
        return index_HK, lengths_H

    held = [kept_HK.shape[1] for kept_HK in cache.kept_HK]
    monkeypatch.setattr(Recompression, "_keep", keep)
    compression = Compression(method, config.decode_budget, config)
    (answer,) = decode(tiny_backbone(family), [DecodeRow(cache, length, question, limit, compression)], PLENTY)
    assert len(answer.token_ids) == limit
    assert len({position for layer in gone for position in layer.unique().tolist()}) > 4, "several compressions"
    assert_greedy(family, random_ids(length), question, answer.token_ids, gone)


def memory_checkpoint(folder, geometry, **memory):
    """Trained-looking modules: an indexer and its memory."""
    torch.manual_seed(5)
    indexers = IndexerStack(IndexerShape.of(IndexerConfig(pair_term=True), geometry), geometry)
    memories = noisy(MemoryStack(MemoryShape.of(MemoryConfig(**memory), geometry), geometry))
    return save_modules({"indexer": indexers, "memory-indexer": memories}, folder)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_a_closed_gate_and_an_empty_memory_change_no_bit(family, tmp_path):
    geometry = tiny_backbone(family).geometry
    closed = {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre", "gate_bias": -1e9}
    for memory, ratio in ((closed, 0.7), ({"dim": 6}, 0.0)):
        folder = memory_checkpoint(tmp_path / str(ratio), geometry, **memory)
        plain_logits, with_memory = (engine_logits(family, folder, name, ratio) for name in ("indexer", "indexmem"))
        assert torch.equal(plain_logits, with_memory)


def test_memory_lies_in_full_layers_alone_and_takes_part(tmp_path):
    folder = memory_checkpoint(tmp_path, tiny_backbone(FAMILY).geometry, dim=6)
    rows = [
        row_of(FAMILY, method, 150, 0.7, [5, 6, 7], 4)
        for method in methods_for(FAMILY, ("indexer", "indexmem"), folder).values()
    ]
    assert len(rows[1].cache.memories) == len(FULL_LAYERS)
    assert rows[1].cache.memory_bytes == 3 * 2 * 6 * (2 * 16 + 2) * 4
    assert rows[1].cache.kv_bytes == rows[0].cache.kv_bytes
    difference = engine_logits(FAMILY, folder, "indexer", 0.7) - engine_logits(FAMILY, folder, "indexmem", 0.7)
    assert difference.abs().max() > 1e-2


@pytest.mark.parametrize("memory", MEMORIES)
def test_logits_equal_those_of_the_presses(memory, tmp_path):
    """One token at a time: transformers makes one mask for all full layers, from a layer that kvpress did not cut."""
    folder = checkpoint(tmp_path, tiny_backbone(FAMILY).geometry, memory)
    press = IndexMemPress.from_pretrained(folder, compression_ratio=0.7)
    ids, model = random_ids(7, seed=9), plain(FAMILY)
    got = {}
    for name, used in (("indexmem", press), ("indexer", press.press)):
        cache, logits = filled(model, used), []
        for number, token in enumerate(ids):
            position = torch.tensor([LENGTH + number])
            with torch.no_grad():
                step = model(
                    torch.tensor([[token]]),
                    past_key_values=cache,
                    position_ids=position[None],
                    cache_position=position,
                )
            logits.append(step.logits)
        press.detach()
        got[name] = torch.cat(logits, dim=1)
        torch.testing.assert_close(got[name], engine_logits(FAMILY, folder, name, 0.7), rtol=1e-3, atol=1e-3)
    assert (got["indexmem"] - got["indexer"]).abs().max() > 1e-2


@given(data=st.data(), window=st.integers(2, 12), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_rings_equal_dense_attention_over_all_tokens(data, window, lengths):
    """Whatever comes at once, whatever is padding, whichever rows leave."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    keys, values = ([draw(2, length, 4) for length in lengths] for _ in range(2))
    nothing = [torch.zeros(2, 1, 4)], [torch.zeros(2, 1, 4)], [torch.zeros(2, 1, dtype=torch.long)]
    rows = [RowCache(*nothing, windows=[Window.of(5, window, k, v)]) for k, v in zip(keys, values)]
    at_once = data.draw(st.integers(1, 9))
    rings = WindowRings(rows, at_once)
    for _ in range(data.draw(st.integers(1, 6))):
        new = data.draw(st.integers(1, at_once))
        padding = [data.draw(st.integers(0, new - 1)) for _ in keys]
        query, key, value = (draw(len(keys), heads, new, 4) for heads in (6, 2, 2))
        rings.extend(torch.arange(new) >= torch.tensor(padding)[:, None])
        rings.store(5, key, value)
        output = rings.attend(5, query, 0.7).transpose(1, 2)
        assert output.isfinite().all()
        for row, begin in enumerate(padding):
            keys[row] = torch.cat((keys[row], key[row, :, begin:]), dim=1)
            values[row] = torch.cat((values[row], value[row, :, begin:]), dim=1)
            total, real = keys[row].shape[1], new - begin
            position_S = torch.arange(total - real, total)[:, None]
            mask = (torch.arange(total) <= position_S) & (torch.arange(total) > position_S - window)
            expected = dense_attention(query[row, :, begin:], keys[row], values[row], mask, 0.7)
            torch.testing.assert_close(output[row, :, begin:].double(), expected, atol=1e-5, rtol=1e-5)
        stay = data.draw(st.lists(st.sampled_from(range(len(keys))), min_size=1, unique=True).map(sorted))
        rings.select(torch.tensor(stay))
        keys, values = [keys[row] for row in stay], [values[row] for row in stay]


def test_a_batch_is_planned_with_the_bytes_of_its_rings():
    row = row_of(FAMILY, methods_for(FAMILY, ["knorm"])["knorm"], 150, 0.5, list(range(5, 13)), 40)
    without = replace(row, cache=replace(row.cache, windows=()))
    rings = WindowRings([row.cache], at_once=8)
    held = sum(ring.nbytes for ring in [*rings.keys_RHTd.values(), *rings.values_RHTd.values()])
    assert row.bytes_at_end - without.bytes_at_end == held
