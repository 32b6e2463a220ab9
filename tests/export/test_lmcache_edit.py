"""The edit function of LMCache's SDK, on tensors: [2, layers, tokens, dim] and token ids in, what stays out."""

from enum import Enum

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kept_rows import kept_tokens
from tiny_models import random_ids, tiny_backbone, tiny_model
from transformers import DynamicCache

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.granularity import SetsOfBlocks
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.selection import PER_HEAD, Shared
from indexmem.export.folder import export_checkpoint
from indexmem.export.portable import ExportedIndexer, edit_function, positions, scores_of_cache

SINKS = 4
Kind = Enum("Kind", {"KV": "kv", "QUERY": "query"})  # as lmcache.sdk.cache_kind has it


def trained(folder, reads, family="llama"):
    geometry = tiny_backbone(family).geometry
    torch.manual_seed(5)
    stack = IndexerStack(IndexerShape.of(IndexerConfig(reads=reads), geometry), geometry)
    return save_modules({"indexer": stack}, folder)


def cached(family, ids, method=None):
    """The engine's prefill, and its cache as the SDK hands it out, [2, N, T, D]."""
    filled = prefill(tiny_backbone(family), ids, {} if method is None else {"indexer": method}, SINKS)
    held = (filled.context.keys_HLd, filled.context.values_HLd)
    return filled, torch.stack([torch.stack([x.transpose(0, 1).flatten(1) for x in side]) for side in held])


@pytest.fixture(params=["key", "key_value"])
def pair(request, tmp_path):
    """A checkpoint that reads the cache, and its export."""
    folder = trained(tmp_path / "a", request.param)
    return folder, ExportedIndexer.load(export_checkpoint(str(folder), tmp_path / "b"))


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("length", [9, 64, 150])
def test_each_head_holds_what_the_engine_keeps(pair, length, ratio):
    folder, indexer = pair
    backbone, ids = tiny_backbone(), random_ids(length)
    method = make_method(
        MethodConfig(name="indexer"), MethodContext(backbone.geometry, checkpoint=str(folder), share="head")
    )
    filled, kv_2NTD = cached("llama", ids, method)
    edited, named = edit_function(indexer, ratio, chunk=1, alike=False)({Kind.KV: kv_2NTD}, ids)
    row = method.compress(filled.context, filled.rankings_HL["indexer"], length * (1 - ratio))
    for layer in range(row_layers := len(row.kept_HK)):
        keys, values = kept_tokens(row, layer)
        for side, expected_HKd in enumerate((keys, values)):
            found_HKd = edited[side, layer].unflatten(-1, (2, -1)).transpose(0, 1)
            assert torch.equal(found_HKd, expected_HKd)
    assert edited.shape == (2, row_layers, len(named), kv_2NTD.shape[-1])


@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_one_set_for_all_heads_in_whole_chunks(pair, chunk):
    _, indexer = pair
    ids = random_ids(150)
    _, kv_2NTD = cached("llama", ids)
    edited, named = edit_function(indexer, 0.5, chunk=chunk)({Kind.KV: kv_2NTD, Kind.QUERY: kv_2NTD[:1]}, ids)
    assert len(named) == 75 // chunk * chunk
    kept_K = positions(scores_of_cache(indexer, kv_2NTD), len(named), SINKS)[0, 0]
    assert kept_K[:SINKS].tolist() == list(range(SINKS))
    assert torch.equal(edited, kv_2NTD[:, :, kept_K])
    assert named == [ids[at] for at in kept_K.tolist()]


@pytest.mark.parametrize("across", ["head", "model"])  # with budgets of their own, or one for all heads
def test_one_set_is_that_of_granularity_model(across, pair):
    """`eviction.granularity: model`, in tokens."""
    _, indexer = pair
    ids = random_ids(150)
    _, kv_2NTD = cached("llama", ids)
    scores_NHT = scores_of_cache(indexer, kv_2NTD)
    selection = SetsOfBlocks.of(PER_HEAD if across == "head" else Shared(across), "model", 1)
    ranked = list(selection.rank(scores_NHT, SINKS))
    for count in (5, 40, 149):
        (kept_HK, counts_H), *_ = selection.choose(ranked, len(ids), count)
        assert counts_H is None or counts_H.tolist() == [count, count]
        assert positions(scores_NHT, count, SINKS)[0, 0].tolist() == kept_HK[0].tolist()


def test_a_cache_of_a_chunk_or_less_stays(pair):
    _, indexer = pair
    ids = random_ids(16)
    _, kv_2NTD = cached("llama", ids)
    edited, named = edit_function(indexer, 0.9, chunk=16)({Kind.KV: kv_2NTD}, ids)
    assert edited is kv_2NTD
    assert named == list(ids)


@given(length=st.integers(5, 40), count=st.integers(1, 40), heads=st.sampled_from([1, 2, 3]), seed=st.integers(0, 9))
def test_positions_are_sets_of_the_best(length, count, heads, seed):
    scores_NHT = torch.randn(2, heads, length, generator=torch.Generator().manual_seed(seed))
    count = min(count, length)
    for alike in (True, False):
        kept_NHK = positions(scores_NHT, count, sinks=1, alike=alike)
        assert kept_NHK.shape == (2, heads, count)
        assert (kept_NHK.diff(dim=-1) > 0).all()
        assert (kept_NHK[..., 0] == 0).all()
        assert not alike or (kept_NHK == kept_NHK[0, 0]).all()
        best = scores_NHT.amax(dim=(0, 1)).expand_as(scores_NHT) if alike else scores_NHT
        lost = best.scatter(-1, kept_NHK, float("-inf"))[..., 1:].amax(dim=-1) if length > 1 else best[..., 0]
        held = best.gather(-1, kept_NHK)[..., 1:]
        assert count == 1 or (held.amin(dim=-1) >= lost).all()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_keys_are_moved_so_that_queries_see_true_distances(family, alike, tmp_path):
    """The engine counts on from the shorter cache; logits are those of queries at their places in the whole context."""
    indexer = ExportedIndexer.load(export_checkpoint(str(trained(tmp_path / "a", "key", family)), tmp_path / "b"))
    model, ids, question = tiny_model(family), random_ids(96), torch.tensor([random_ids(7, seed=1)])
    _, kv_2NTD = cached(family, ids)

    def logits(inv_freq, first):
        edit = edit_function(indexer, 0.5, chunk=16, alike=alike, inv_freq=inv_freq)
        edited, named = edit({Kind.KV: kv_2NTD}, ids)
        cache = DynamicCache()
        for layer, sides in enumerate(edited.unflatten(-1, (2, -1)).transpose(2, 3).transpose(0, 1)):
            cache.update(*sides[:, None].unbind(0), layer)
        places = torch.arange(first(len(named)), first(len(named)) + question.shape[1])[None]
        return model(question, past_key_values=cache, position_ids=places).logits

    true_places = logits(None, lambda kept: len(ids))
    moved = logits(model.model.rotary_emb.inv_freq, lambda kept: kept)
    torch.testing.assert_close(moved, true_places, atol=1e-3, rtol=1e-3)
    assert (logits(None, lambda kept: kept) - true_places).abs().max() > 0.05, "distances matter here"


def test_what_the_cache_does_not_hold_is_asked_for(tmp_path):
    indexer = ExportedIndexer.load(export_checkpoint(str(trained(tmp_path / "a", "hidden")), tmp_path / "b"))
    ids = random_ids(32)
    _, kv_2NTD = cached("llama", ids)
    with pytest.raises(ValueError, match=r"reads hidden.*give `scores`"):
        edit_function(indexer, 0.5)({Kind.KV: kv_2NTD}, ids)
    scores_NHT = torch.randn(3, 2, 32)
    _, named = edit_function(indexer, 0.5, chunk=8, scores=lambda _: scores_NHT)({Kind.KV: kv_2NTD}, ids)
    kept_K = positions(scores_NHT, 16, SINKS)[0, 0]
    assert named == [ids[at] for at in kept_K.tolist()]
