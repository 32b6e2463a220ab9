"""Eviction before attention: layers run by hand in fp64 with a mask over kept tokens give the same K, V and choices."""

import copy

import pytest
import torch
from dense_reference import dense_attention, dense_importance
from kept_rows import kept_tokens
from prefill_flops import prefill_flops
from tiny_models import FULL_FAMILIES, random_ids, tiny_backbone, tiny_model
from transformers import AttentionInterface

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import EvictionConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression
from indexmem.engine.sparse_prefill import sparse_prefill
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.selection import PER_HEAD, Shared, tokens_left

LENGTH, SINKS = 70, 3


def scores_for(family, share_every=1, scope="kv_head", sharing=PER_HEAD) -> IndexerScores:
    torch.manual_seed(2)
    geometry = tiny_backbone(family).geometry
    config = IndexerConfig(share_every=share_every, scope=scope, pair_term=True, heads=2, dim=4, token_term=0)
    shape = IndexerShape.of(config, geometry)
    return IndexerScores(IndexerStack(shape, geometry).requires_grad_(False), sharing)


def best_of_each(importance, count):
    return [head.argsort(descending=True, stable=True)[:count].sort().values for head in importance]


def best_of_both(importance, count):
    """The best pairs of a layer, half of an even split for each head in any case."""
    heads, tokens = importance.shape
    order = [head.argsort(descending=True, stable=True).tolist() for head in importance]
    sure = {(t, h) for h in range(heads) for t in order[h][: count // 2]}
    pairs = sorted(((t, h) for h in range(heads) for t in range(tokens)), key=lambda x: (-importance[x[1], x[0]], *x))
    kept = [*sure, *(pair for pair in pairs if pair not in sure)][: heads * count]
    return [torch.tensor(sorted(t for t, g in kept if g == h)) for h in range(heads)]


def with_mask(family, ids, method, count, best=best_of_each):
    """The definition: transformers' own layers in fp64, each attending with a mask that hides what is not kept."""
    model = copy.deepcopy(tiny_model(family, "eager")).double()
    decoder, geometry = model.get_decoder(), tiny_backbone(family).geometry
    hidden = decoder.embed_tokens(torch.tensor([ids]))
    positions = torch.arange(len(ids))[None]
    tables = decoder.rotary_emb(hidden, positions)
    unrotated = (torch.ones_like(tables[0]), torch.zeros_like(tables[1]))
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    seen = {}

    def eager(module, query, key, value, mask, scaling, **kwargs):
        seen["query"], seen["key"], seen["value"] = query, key, value
        return torch.zeros(1, len(ids), geometry.heads, geometry.head_dim, dtype=query.dtype), None

    kept_by_layer, keys, values = [], [], []
    AttentionInterface.register("capture", eager)
    decoder.config._attn_implementation = "capture"
    for number, layer in enumerate(decoder.layers):
        x = layer.input_layernorm(hidden)
        layer.self_attn(x, position_embeddings=unrotated, attention_mask=None)
        indexer = method.indexers.owned_by(number)
        if indexer is not None:
            importance = dense_importance(indexer, x[0], seen["query"][0]).expand(geometry.kv_heads, -1).clone()
            importance[:, :SINKS] = float("inf")
            kept = best(importance, count)
        layer.self_attn(x, position_embeddings=tables, attention_mask=None)
        query, key, value = seen["query"][0], seen["key"][0], seen["value"][0]
        outputs = []
        for head in range(geometry.kv_heads):
            allowed = torch.zeros(len(ids), dtype=torch.bool)
            allowed[kept[head]] = True
            group = slice(head * geometry.group, (head + 1) * geometry.group)
            masked = dense_attention(
                query[group], key[head][None], value[head][None], causal & allowed, layer.self_attn.scaling
            )
            outputs.append(masked)
        out = torch.cat(outputs).transpose(0, 1).flatten(1)
        hidden = hidden + layer.self_attn.o_proj(out)[None]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        kept_by_layer.append(kept)
        keys.append([key[head, positions] for head, positions in enumerate(kept)])
        values.append([value[head, positions] for head, positions in enumerate(kept)])
    return kept_by_layer, keys, values


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize(("scope", "share_every", "ratio"), [("kv_head", 1, 0.7), ("layer", 2, 0.4)])
def test_equals_layers_run_by_hand_with_a_mask(family, scope, share_every, ratio):
    ids, method, count = random_ids(LENGTH), scores_for(family, share_every, scope), tokens_left(LENGTH, ratio)
    row = sparse_prefill(tiny_backbone(family), ids, method, count, SINKS).cache
    kept, keys, values = with_mask(family, ids, method, count)
    assert [layer.tolist() for layer in row.kept_HK] == [[head.tolist() for head in layer] for layer in kept]
    for ours, expected in zip([*row.keys_HLd, *row.values_HLd], [*keys, *values]):
        assert ours.shape == (2, count, 16)
        torch.testing.assert_close(ours.double(), torch.stack(expected), atol=2e-4, rtol=1e-3)
    plain = prefill(tiny_backbone(family), ids, {"indexer": scores_for(family, share_every, scope)}, SINKS)
    index = row.kept_HK[-1][..., None].expand(-1, -1, 16)
    assert not torch.allclose(plain.context.keys_HLd[-1].gather(1, index), row.keys_HLd[-1], atol=1e-2)


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("share_every", [1, 2])
def test_heads_of_a_layer_share_its_budget(family, share_every):
    ids, count = random_ids(LENGTH), 24
    method = scores_for(family, share_every, sharing=Shared("layer", 0.5))
    row = sparse_prefill(tiny_backbone(family), ids, method, count, SINKS).cache
    kept, keys, values = with_mask(family, ids, method, count, best_of_both)
    for layer in range(3):
        lengths = row.lengths(layer)
        assert sum(lengths) == 2 * count and min(lengths) >= count // 2
        for head, length in enumerate(lengths):
            assert row.kept_HK[layer][head, :length].tolist() == kept[layer][head].tolist()
            for ours, expected in ((row.keys_HLd, keys), (row.values_HLd, values)):
                found = ours[layer][head, :length].double()
                torch.testing.assert_close(found, expected[layer][head], atol=2e-4, rtol=1e-3)
    assert len({tuple(row.lengths(layer)) for layer in range(3)} - {(count, count)}) > 0, "heads differ"
    owners = range(0, 3, share_every)
    assert row.indexer_bytes == sum(sum(row.lengths(layer)) for layer in owners) * 4 * 4
    config = EvictionConfig(decode_budget=24, decode_every=8, decode_window=4, sinks=SINKS)
    decoded = DecodeRow(row, LENGTH, random_ids(5, seed=3), 30, Compression(method, config.decode_budget, config))
    assert decode(tiny_backbone(family), [decoded], 2**30)[0].held_mean < 24 + 8


@pytest.mark.parametrize("family", FULL_FAMILIES)
def test_keeping_everything_is_plain_prefill(family):
    ids, method, backbone = random_ids(LENGTH), scores_for(family), tiny_backbone(family)
    sparse = sparse_prefill(backbone, ids, method, LENGTH, SINKS).cache
    done = prefill(backbone, ids, {"indexer": method}, SINKS)
    plain = method.compress(done.context, done.rankings_HL["indexer"], done.context.tokens)
    for layer in range(3):
        for ours, expected in zip(kept_tokens(sparse, layer), kept_tokens(plain, layer)):
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-3)
    assert (sparse.kv_bytes, sparse.indexer_bytes) == (plain.kv_bytes, plain.indexer_bytes)
    question = random_ids(5, seed=3)
    texts = [decode(backbone, [DecodeRow(row, LENGTH, question, 12)], 2**30)[0].token_ids for row in (sparse, plain)]
    assert texts[0] == texts[1]


def test_its_cache_decodes_with_a_budget_too():
    method, backbone = scores_for("llama"), tiny_backbone()
    config = EvictionConfig(decode_budget=24, decode_every=8, decode_window=4, sinks=SINKS)
    row = sparse_prefill(backbone, random_ids(LENGTH), method, 20, SINKS).cache
    decoded = DecodeRow(row, LENGTH, random_ids(5, seed=3), 30, Compression(method, config.decode_budget, config))
    assert decode(backbone, [decoded], 2**30)[0].token_ids


def test_a_first_token_must_stay():
    with pytest.raises(ValueError, match="always kept"):
        sparse_prefill(tiny_backbone(), random_ids(20), scores_for("llama"), 5, sinks=0)


def test_flops_count_every_matmul_once():
    geometry, length, kept = tiny_backbone().geometry, 50, 50
    flops = 0
    for _ in range(geometry.layers):
        for out in (64, 32, 32):  # q, k, v
            flops += 2 * length * 48 * out
        flops += 2 * length * 64 * 48  # o
        flops += sum(2 * 2 * 4 * 16 * (s + 1) for s in range(length))  # q k^T and p v over what each query sees
        flops += 3 * 2 * length * 48 * 64  # gate, up, down
    assert prefill_flops(geometry, length, kept, mlp_width=64) == flops
    sparse = prefill_flops(geometry, length, 10, mlp_width=64)
    assert flops - sparse == 3 * (4 * 40 * 48 * 32 + 2 * 64 * 40 * 51)
    early = prefill_flops(geometry, length, 10, mlp_width=64, pairs=sum(50 - t for t in range(10)))
    assert early - sparse == 3 * 2 * 64 * 2 * (455 - 255)
    shape = IndexerShape("kv_head", heads=2, dim=4, activation="relu", rows=2, share_every=2)
    one = 2 * 50 * (64 * 4 * 4 + 48 * 4 + 48 * 4) + 1275 * 4 * 11
    assert prefill_flops(geometry, length, 10, mlp_width=64, indexer=shape) - sparse == 2 * one
