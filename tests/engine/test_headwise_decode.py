"""Heads that keep different tokens, and different numbers of them: their answers, and the memory of what they evict."""

import pytest
import torch
from kvpress_oracle import kept_mask
from masked_reference import assert_greedy, gone_after_prefill
from tiny_models import FAMILIES, random_ids, tiny_backbone

from indexmem.config.modules import MemoryConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

PLENTY = 2**34
SNAPKV = {"name": "snapkv", "params": {"window_size": 8}}
PARAMS = {
    "adakv": {"base": SNAPKV},
    "critical_adakv": {"base": SNAPKV},
    "criticalkv": {"base": "knorm"},
    "duo_attention": {"sink_size": 4, "recent_size": 16},
    "kvzip": {"chunk_size": 48},
}


def compressed(family, context_ids, ratios, params=PARAMS, folder=None):
    """Rows of every method at every ratio, by (name, ratio)."""
    backbone = tiny_backbone(family)
    context = MethodContext(backbone.geometry, checkpoint=folder)
    methods = {name: make_method(MethodConfig(name=name, params=own), context) for name, own in params.items()}
    done = prefill(backbone, context_ids, methods, sinks=4)
    assert not done.errors, done.errors
    return {
        (name, ratio): method.compress(done.context, done.rankings_HL[name], len(context_ids) * (1 - ratio))
        for name, method in methods.items()
        for ratio in ratios
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_equals_attention_with_the_evicted_pairs_masked(family):
    context, question = random_ids(110), random_ids(6, seed=4)
    rows = compressed(family, context, (0.5, 0.85))
    decode_rows = [DecodeRow(row, len(context), question, 8) for row in rows.values()]
    answers = decode(tiny_backbone(family), decode_rows, PLENTY)
    assert {answer.batch for answer in answers} == {len(rows)}
    texts = set()
    for row, answer in zip(rows.values(), answers):
        total = len(context) + len(question) + len(answer.token_ids)
        gone = [gone_after_prefill(kept_HK, len(context), total) for kept_HK in row.kept_HK]
        assert_greedy(family, context, question, answer.token_ids, gone)
        texts.add(tuple(answer.token_ids))
    assert len(texts) > 2, "the rows must not all agree, or this shows nothing"
    uneven = [name for name, row in rows.items() if any(len(set(row.lengths(layer))) > 1 for layer in range(3))]
    assert {name for name, _ in uneven} >= {"adakv", "critical_adakv", "duo_attention", "kvzip"}


def memory_folder(folder, family, bases, **memory):
    torch.manual_seed(3)
    geometry = tiny_backbone(family).geometry
    stacks = {f"memory-{b}": MemoryStack(MemoryShape.of(MemoryConfig(**memory), geometry), geometry) for b in bases}
    return str(save_modules(stacks, folder))


WITH_MEMORY = {f"{name}+memory": PARAMS[name] for name in ("adakv", "critical_adakv", "duo_attention")}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_a_memory_with_room_for_all_that_heads_evict_gives_the_full_cache_s_text(family, tmp_path):
    context, question = random_ids(110), random_ids(6, seed=4)
    folder = memory_folder(tmp_path, family, [name.partition("+")[0] for name in WITH_MEMORY], dim=len(context))
    rows = compressed(family, context, (0.6,), {"full": {}} | WITH_MEMORY, folder)
    rows["full", 0.6] = compressed(family, context, (0.0,), {"full": {}})["full", 0.0]
    answers = decode(tiny_backbone(family), [DecodeRow(row, 110, question, 8) for row in rows.values()], PLENTY)
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    plain = compressed(family, context, (0.6,), {name: PARAMS[name] for name in ("adakv", "duo_attention")})
    forgetful = decode(tiny_backbone(family), [DecodeRow(row, 110, question, 8) for row in plain.values()], PLENTY)
    assert all(answer.token_ids != answers[0].token_ids for answer in forgetful), "or the memory had nothing to do"


def test_what_a_head_does_not_keep_is_written_to_its_memory(tmp_path):
    """A slot memory's masses of a head add up to the tokens that this head evicted."""
    folder = memory_folder(tmp_path, "llama", ("adakv",), dim=7)
    rows = compressed(
        "llama", random_ids(110), (0.6,), {"adakv+memory": PARAMS["adakv"], "adakv": PARAMS["adakv"]}, folder
    )
    row, plain = rows["adakv+memory", 0.6], rows["adakv", 0.6]
    for layer in range(3):
        assert row.lengths(layer) == plain.lengths(layer)
        assert torch.equal(kept_mask(row, layer), kept_mask(plain, layer))
        _, state = row.memories[layer]
        mass_H = state.tensors["mass"].sum(-1)[0]
        torch.testing.assert_close(mass_H, 110.0 - torch.tensor(row.lengths(layer)).float())
    assert len({tuple(row.lengths(layer)) for layer in range(3)}) > 1
