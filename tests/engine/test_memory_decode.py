"""Memory inside batched decoding: nothing lost with enough slots, nothing changed without content, rows independent."""

from dataclasses import replace

import pytest
import torch
from tiny_models import FAMILIES, random_ids, tiny_backbone

from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.names import needs_training
from indexmem.eviction.methods.registry import make_method

PLENTY = 2**34
LENGTH = 120


def checkpoint(folder, backbone, noise=0.0, bases=("indexer", "snapkv", "keydiff"), **memory):
    torch.manual_seed(3)
    geometry = backbone.geometry
    modules = {"indexer": IndexerStack(IndexerShape.of(IndexerConfig(), geometry), geometry)}
    for base in bases:
        stack = MemoryStack(MemoryShape.of(MemoryConfig(**memory), geometry), geometry)
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter.add_(torch.randn_like(parameter) * noise)
        modules[f"memory-{base}"] = stack
    return str(save_modules(modules, folder))


def answers(backbone, folder, names, ratio=0.6, steps=10, sample=0):
    context = MethodContext(backbone.geometry, checkpoint=folder)
    methods = {name: make_method(MethodConfig(name=name), context) for name in names}
    done = prefill(backbone, random_ids(LENGTH, seed=sample), methods, sinks=4)
    assert not done.errors, done.errors
    question = random_ids(6, seed=20 + sample)
    rows = [
        DecodeRow(
            m.compress(done.context, done.rankings_HL[n], done.context.tokens * (1 - (0.0 if n == "full" else ratio))),
            LENGTH,
            question,
            steps,
        )
        for n, m in methods.items()
    ]
    return rows, [a.token_ids for a in decode(backbone, rows, PLENTY)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rotary", ["pre", "post"])
def test_enough_slots_give_the_full_cache_s_text(tmp_path, family, rotary):
    """With rotation a slot's key is exact only after RoPE; before it, relative positions are lost."""
    backbone = tiny_backbone(family)
    folder = checkpoint(tmp_path, backbone, dim=LENGTH, rotary=rotary)
    names = ["full", "indexer", "indexmem", "snapkv+memory", "keydiff+memory"]
    _, (full, plain, *with_memory) = answers(backbone, folder, names)
    assert plain != full, "eviction must change the text, or this shows nothing"
    if rotary == "post":
        assert with_memory == [full] * 3
    else:
        assert with_memory[0] != plain


@pytest.mark.parametrize(
    "memory",
    [
        {"features": "slots", "dim": 6},
        {"features": "positive", "dim": 8},
        {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre", "gate_bias": 0.0},
        {"features": "linear", "fusion": "mix", "input": "model", "value": "model", "rotary": "pre", "gate_bias": -1.0},
    ],
    ids=lambda m: "-".join(str(v) for v in m.values()),
)
def test_a_batch_of_memories_gives_what_each_row_gives_alone(tmp_path, memory):
    backbone = tiny_backbone("qwen3")
    folder = checkpoint(tmp_path, backbone, noise=0.1, **memory)
    rows, together = answers(backbone, folder, ["indexer", "indexmem", "snapkv", "snapkv+memory", "full"])
    more, also = answers(backbone, folder, ["indexmem", "keydiff+memory"], ratio=0.8, steps=4, sample=1)
    batch = decode(backbone, [*rows, *more], PLENTY)
    assert [a.token_ids for a in batch] == together + also
    assert [decode(backbone, [row], PLENTY)[0].token_ids for row in rows] == together
    assert together[0] != together[1], "the memory must matter"
    assert together[2] != together[3]


def test_rows_without_memory_are_untouched_by_those_with(tmp_path):
    backbone = tiny_backbone()
    folder = checkpoint(tmp_path, backbone, noise=0.3, features="slots", dim=6)
    _, alone = answers(backbone, folder, ["indexer", "snapkv", "knorm"])
    _, mixed = answers(backbone, folder, ["indexer", "snapkv", "knorm", "indexmem", "snapkv+memory"])
    assert mixed[:3] == alone


def test_a_closed_gate_reproduces_plain_eviction(tmp_path):
    backbone = tiny_backbone()
    memory = {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre", "gate_bias": -1e9}
    folder = checkpoint(tmp_path, backbone, **memory)
    _, (plain, with_memory) = answers(backbone, folder, ["indexer", "indexmem"], ratio=0.8)
    assert plain == with_memory


def test_values_in_model_space_equal_values_before_the_projection(tmp_path):
    """o_proj is linear: o_proj(o + g m) = o_proj(o) + g W_O m, for addresses shared by all heads."""
    backbone = tiny_backbone("phi3")
    texts = []
    for value in ("attn", "model"):
        memory = {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre", "value": value}
        folder = checkpoint(tmp_path / value, backbone, noise=0.1, gate_bias=1.0, **memory)
        texts.append(answers(backbone, folder, ["indexer", "indexmem"], ratio=0.8)[1])
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_bytes_are_counted_from_tensors(tmp_path):
    backbone = tiny_backbone()
    folder = checkpoint(tmp_path, backbone, dim=6)
    (plain, with_memory), _ = answers(backbone, folder, ["indexer", "indexmem"], ratio=0.5, steps=1)
    layers, kv, dim = 3, 2, 16
    assert plain.cache.kv_bytes == with_memory.cache.kv_bytes == layers * kv * 60 * 2 * dim * 4
    assert plain.cache.memory_bytes == 0
    assert with_memory.cache.memory_bytes == layers * kv * 6 * (2 * dim + 2) * 4
    assert with_memory.cache.indexer_bytes == plain.cache.indexer_bytes > 0
    assert replace(plain.cache, representation_bytes=7).kv_bytes == 7


def test_names_and_mistakes(tmp_path):
    backbone = tiny_backbone()
    folder = checkpoint(tmp_path, backbone, bases=("indexer",))
    context = MethodContext(backbone.geometry, checkpoint=folder)
    same = [make_method(MethodConfig(name=n), context).checkpoint for n in ("indexmem", "indexer+memory")]
    assert same[0] == same[1]
    with pytest.raises(UserError, match=r"holds no trained 'memory-snapkv' \(it holds: indexer, memory-indexer\)"):
        make_method(MethodConfig(name="snapkv+memory"), context)
    for name in ("full+memory", "snapkv+memoir", "indexmem+memory"):
        with pytest.raises(UserError, match="Unknown method"):
            make_method(MethodConfig(name=name), context)
    assert [needs_training(MethodConfig(name=n)) for n in ("snapkv", "snapkv+memory", "indexmem", "indexer")] == [
        False,
        True,
        True,
        True,
    ]
    learned_base = MethodConfig(name="running_mean", params={"base": "indexer"})
    assert needs_training(learned_base)
    assert not needs_training(MethodConfig(name="running_mean", params={"base": "knorm"}))
    assert not needs_training(MethodConfig(name="snapkv+memory", params={"checkpoint": folder}))
    for nothing_evicted in ("xkv+memory", "full+memory"):
        with pytest.raises(UserError, match="Unknown method"):
            make_method(MethodConfig(name=nothing_evicted), context)
