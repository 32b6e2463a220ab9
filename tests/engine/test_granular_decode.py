"""Sets of blocks while decoding, before prefill, and with a memory: one set, whole blocks, a budget that holds."""

from collections import Counter

import pytest
import torch
from masked_reference import assert_greedy, gone_after_prefill
from tiny_models import random_ids, tiny_backbone

from indexmem.config.modules import IndexerConfig, MemoryConfig, module_name
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression, Recompression
from indexmem.engine.sparse_prefill import sparse_prefill
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.footprint import check_kept
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

PLENTY = 2**34
BUDGET, EVERY, WINDOW, SINKS, LONG = 40, 16, 6, 4, 90
COARSE = [("head", 8), ("layer", 1), ("layer", 8), ("model", 1), ("model", 8)]


@pytest.fixture(autouse=True)
def no_end(monkeypatch):
    """Answers run to their limit."""
    monkeypatch.setattr(tiny_backbone().model.generation_config, "eos_token_id", [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(1)
    geometry = tiny_backbone().geometry
    shape = IndexerShape.of(IndexerConfig(pair_term=True, heads=2, dim=4, token_term=6), geometry)
    memory = MemoryStack(MemoryShape.of(MemoryConfig(dim=6), geometry), geometry)
    modules = {"indexer": IndexerStack(shape, geometry), module_name("knorm"): memory}
    return str(save_modules(modules, tmp_path_factory.mktemp("modules")))


def config_of(granularity, block, **settings):
    return EvictionConfig(granularity=granularity, block=block, sinks=SINKS, **settings)


def method_named(name, granularity, block, folder, **params):
    context = MethodContext(tiny_backbone().geometry, "cpu", folder, granularity=granularity, block=block)
    return make_method(MethodConfig(name=name, params=params), context)


def assert_sets(layers, granularity):
    """`layers`: positions of each head."""
    heads = [frozenset(head) for layer in layers for head in layer]
    if granularity == "model":
        assert len(set(heads)) == 1
    elif granularity == "layer":
        assert all(len({frozenset(head) for head in layer}) == 1 for layer in layers)


@pytest.mark.parametrize(("granularity", "block"), COARSE)
def test_while_decoding(granularity, block, folder, monkeypatch):
    """Rows of several methods and lengths in one batch: after each compression sets are one, and the budget holds."""
    config = config_of(granularity, block, decode_budget=BUDGET, decode_every=EVERY, decode_window=WINDOW)
    names = {"knorm": {}, "keydiff": {}, "snapkv": {"window_size": 12, "kernel_size": 5}, "indexer": {}}
    methods = {name: method_named(name, granularity, block, folder, **params) for name, params in names.items()}
    rows = []
    for sample, (length, limit) in enumerate(((LONG, 45), (60, 20))):
        done = prefill(tiny_backbone(), random_ids(length, seed=sample), methods, sinks=SINKS)
        for label, method in methods.items():
            cache = method.compress(done.context, done.rankings_HL[label], min(BUDGET, length * 0.5))
            question = random_ids(5 + 4 * sample, seed=10 + sample)
            rows.append(DecodeRow(cache, length, question, limit, Compression(method, BUDGET, config)))
    seen = []
    compress = Recompression.compress

    def compressing(self, remaining):
        compress(self, remaining)
        if self.cache.opened.filled == 0:  # it has been repacked
            seen.extend(zip((following - 1 for following in self._next_position), map(held_of, self._held)))

    monkeypatch.setattr(Recompression, "compress", compressing)
    decode(tiny_backbone(), rows, PLENTY)
    assert len(seen) > 10
    for newest, layers in seen:
        assert_sets(layers, granularity)
        heads = [head for layer in layers for head in layer]
        assert sum(map(len, heads)) <= BUDGET * len(heads)
        if newest > 70:  # the shorter context and its question do not fill the budget
            assert sum(map(len, heads)) > (BUDGET - block) * len(heads)
        for head in heads:
            recent = range(max(LONG, newest - WINDOW + 1), newest + 1)  # what prefill evicted is gone
            assert {*range(SINKS), *recent} <= set(head)


def held_of(row):
    return [
        [head[len(head) - count :] for head, count in zip(layer.position_HT.tolist(), layer.lengths_H)] for layer in row
    ]


@pytest.mark.parametrize(("granularity", "block"), COARSE)
def test_text_equals_attention_with_what_left_masked(granularity, block, folder):
    length, limit, question = 90, 25, random_ids(9, seed=4)
    method = method_named("keydiff", granularity, block, folder)
    done = prefill(tiny_backbone(), random_ids(length), {"m": method}, sinks=SINKS)
    cache = method.compress(done.context, done.rankings_HL["m"], length * 0.4)
    gone = [gone_after_prefill(kept_HK, length, length + len(question) + limit) for kept_HK in cache.kept_HK]
    (answer,) = decode(tiny_backbone(), [DecodeRow(cache, length, question, limit, None)], PLENTY)
    assert_greedy("llama", random_ids(length), question, answer.token_ids, gone)


@pytest.mark.parametrize(("granularity", "block"), COARSE)
def test_a_memory_takes_what_leaves(granularity, block, folder):
    """Its sum over all evicted pairs is that of the kept set's complement."""
    plain = method_named("knorm", granularity, block, folder)
    remembers = method_named("knorm+memory", granularity, block, folder)
    done = prefill(tiny_backbone(), random_ids(90), {"a": plain, "b": remembers}, sinks=SINKS)
    kept, row = (m.compress(done.context, done.rankings_HL[x], 36) for x, m in (("a", plain), ("b", remembers)))
    for mine, theirs in zip(row.kept_HK, kept.kept_HK, strict=True):
        assert torch.equal(mine, theirs)
    assert remembers.selection == plain.selection
    assert row.memories and len(row.memories) == 3


@pytest.mark.parametrize(("granularity", "block"), [c for c in COARSE if c[0] != "model"])
@pytest.mark.parametrize("share", ["head", "layer"])
def test_before_prefill(granularity, block, share, folder):
    if granularity == share == "layer":
        share = "head"  # plan() refuses: one set has nothing to share out
    method = method_named("indexer", granularity, block, folder, share=share)
    filled = sparse_prefill(tiny_backbone(), random_ids(93), method, 45.0, SINKS)
    check_kept(filled.cache, 45.0, method.selection.slack, method.selection.step)
    for layer, kept_HK in enumerate(filled.cache.kept_HK):
        heads = [set(kept_K[:n].tolist()) for kept_K, n in zip(kept_HK, filled.cache.lengths(layer))]
        assert_sets([heads], granularity)
        for head in heads:
            assert all(n == block or u == 93 // block for u, n in Counter(p // block for p in head).items())
