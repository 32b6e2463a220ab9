"""xKV: the low-rank maths against dense fp64 SVDs, the byte budget, and the engine with a restored cache."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_models import FAMILIES, random_ids, tiny_backbone
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.context import ContextCache
from indexmem.eviction.lowrank import affordable_ranks, layers_to_matrix, matrix_to_layers, principal_axes, truncate
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.methods.xkv import XKV
from indexmem.models.attention import tapping

TALL, WIDE = (60, 24), (24, 60)


def matrix(shape):
    """Singular values that fall over four decades, as those of real keys do."""
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(shape, generator=generator, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(full, full_matrices=False)
    return ((u * torch.logspace(1, -3, min(shape), dtype=torch.float64)) @ vh).float()


@pytest.mark.parametrize("shape", [TALL, WIDE])
def test_each_rank_equals_the_dense_svd_and_leaves_exactly_the_tail(shape):
    original = matrix(shape)
    u, s, vh = torch.linalg.svd(original.double(), full_matrices=False)
    axes = principal_axes(original)
    errors = []
    for rank in (1, 2, 5, 11, 23):
        stored = truncate(original, axes, rank, torch.float32)
        dense = (u[:, :rank] * s[:rank]) @ vh[:rank]
        torch.testing.assert_close(stored.restore().double(), dense, atol=1e-5, rtol=1e-4)
        errors.append((original - stored.restore()).double().norm().item())
        assert errors[-1] == pytest.approx(s[rank:].norm().item(), rel=1e-3, abs=5e-6)
        assert stored.nbytes == 4 * rank * sum(shape)
    assert errors == sorted(errors, reverse=True)
    whole = truncate(original, axes, min(shape), torch.float32).restore()
    torch.testing.assert_close(whole, original, atol=1e-5, rtol=1e-5)


def test_a_weak_direction_beside_a_strong_one_is_found():
    """What an fp32 Gram matrix would lose: 1e-4 beside 1e3, as where all keys share one large mean."""
    axes = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    tokens = torch.linalg.qr(torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    original = (tokens * torch.tensor([1e3, 1e-4])) @ axes[:, :2].T
    found = principal_axes(original)[:, 1].double()
    assert abs(found @ axes[:, 1]) > 0.999


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0, 0.99), st.floats(0.05, 0.95))
def test_the_ranks_use_the_budget_and_never_more(tokens, columns, ratio, key_share):
    budget, cost = (1 - ratio) * 2 * tokens * columns, tokens + columns
    assume(abs(budget / cost - 2) > 1e-9)
    if budget < 2 * cost:
        with pytest.raises(ValueError, match=f"a context of {tokens} tokens is too short"):
            affordable_ranks(tokens, columns, ratio, key_share)
        return
    keys, values = affordable_ranks(tokens, columns, ratio, key_share)
    assert 1 <= keys <= min(tokens, columns)
    assert 1 <= values <= min(tokens, columns)
    assert (keys + values) * cost <= budget * (1 + 1e-12)
    assert (keys + values + 1) * cost > budget * (1 - 1e-12)


def test_the_authors_split_of_ranks():
    """Llama-3.1-8B, 4 layers: 4,096 columns, ranks 512 and 768 of K and V."""
    tokens, columns = 65_536, 4096
    ratio = 1 - 1280 * (tokens + columns) / (2 * tokens * columns)
    assert affordable_ranks(tokens, columns, ratio - 1e-9, 0.4) == (512, 768)


def test_columns_are_layer_by_layer_and_head_by_head():
    layers = [torch.randn(2, 7, 3) for _ in range(4)]
    together = layers_to_matrix(layers)
    for token in range(7):
        expected = [layer[head, token] for layer in layers for head in range(2)]
        assert torch.equal(together[token], torch.cat(expected))
    assert all(torch.equal(a, b) for a, b in zip(matrix_to_layers(together, 2, 3), layers, strict=True))


def prefilled(family="llama", length=150, seed=0):
    backbone = tiny_backbone(family)
    methods = {n: make_method(MethodConfig(name=n), MethodContext(backbone.geometry)) for n in ("xkv", "full")}
    return backbone, methods["xkv"], prefill(backbone, random_ids(length, seed), methods, sinks=4)


def test_a_cell_equals_the_dense_reference_written_from_the_paper():
    """Groups of 2 and 1 layers; keys straight from the projection, so before RoPE; GQA with 2 KV heads."""
    backbone, _, done = prefilled()
    seen = []
    with torch.no_grad(), tapping(backbone.model, seen.append) as kwargs:
        backbone.model.model(torch.tensor([random_ids(150)]), **kwargs)
    row = XKV(group=2).compress(done.context, done.rankings_HL["xkv"], done.context.tokens * (1 - 0.6))
    for layers in ((0, 1), (2,)):
        key_rank, value_rank = affordable_ranks(150, len(layers) * 32, 0.6, 0.4)
        for rank, project in ((key_rank, "k_proj"), (value_rank, "v_proj")):
            columns = [getattr(seen[n].module, project)(seen[n].hidden_BLD[0]).double() for n in layers]
            u, s, vh = torch.linalg.svd(torch.cat(columns, dim=1), full_matrices=False)
            dense = (u[:, :rank] * s[:rank]) @ vh[:rank]
            for place, n in enumerate(layers):
                expected = dense[:, 32 * place : 32 * place + 32].view(150, 2, 16).transpose(0, 1)
                if project == "k_proj":
                    cos, sin = seen[n].cos_BLr.double(), seen[n].sin_BLr.double()
                    expected = apply_rotary_pos_emb(expected[None], expected[None], cos, sin)[1][0]
                got = row.keys_HLd[n] if project == "k_proj" else row.values_HLd[n]
                torch.testing.assert_close(got.double(), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_ranks_give_the_full_cache_and_its_text(family):
    backbone, xkv, done = prefilled(family)
    columns = done.context.layers * 2 * 16
    row = xkv.restored(done.context, [(columns, columns)])
    for restored, full in zip([*row.keys_HLd, *row.values_HLd], [*done.context.keys_HLd, *done.context.values_HLd]):
        torch.testing.assert_close(restored, full, atol=1e-4, rtol=1e-4)
    full_row = replace(row, keys_HLd=done.context.keys_HLd, values_HLd=done.context.values_HLd)
    rows = [DecodeRow(cache, 150, random_ids(6, seed=3), 12) for cache in (row, full_row)]
    answers = decode(backbone, rows, 2**34)
    assert answers[0].token_ids == answers[1].token_ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_the_factors_and_all_tokens_stay(dtype):
    _, xkv, done = prefilled()
    context = done.context
    context.keys_HLd = [x.to(dtype) for x in context.keys_HLd]
    context.values_HLd = [x.to(dtype) for x in context.values_HLd]
    errors = []
    for ratio in (0.3, 0.5, 0.75, 0.9):
        row = xkv.compress(context, done.rankings_HL["xkv"], context.tokens * (1 - ratio))
        key_rank, value_rank = affordable_ranks(150, 96, ratio, 0.4)
        assert row.kv_bytes == (key_rank + value_rank) * (150 + 96) * dtype.itemsize
        assert 0.9 * (1 - ratio) * context.kv_bytes < row.kv_bytes <= (1 - ratio) * context.kv_bytes
        assert all(torch.equal(kept, torch.arange(150).expand(2, 150)) for kept in row.kept_HK)
        assert {x.dtype for x in [*row.keys_HLd, *row.values_HLd]} == {dtype}
        pairs = zip([*row.keys_HLd, *row.values_HLd], [*context.keys_HLd, *context.values_HLd], strict=True)
        errors.append(sum((a.double() - b.double()).square().sum().item() for a, b in pairs))
    assert errors == sorted(errors)
    assert errors[0] < 0.5 * errors[-1]


def test_ratio_0_is_the_full_cache():
    _, xkv, done = prefilled()
    row = xkv.compress(done.context, done.rankings_HL["xkv"], done.context.tokens)
    assert row.kv_bytes == done.context.kv_bytes
    assert all(a is b for a, b in zip(row.keys_HLd, done.context.keys_HLd, strict=True))


def test_keys_come_back_under_scaled_and_partial_rotation():
    """Long-context RoPE variants scale cos and sin; some families rotate only the first dimensions."""
    angles = torch.outer(torch.arange(40.0), torch.tensor([1.0, 0.1, 0.01])).repeat(1, 2)
    context = ContextCache(40, [torch.randn(2, 40, 8)], [torch.randn(2, 40, 8)], 1.3 * angles.cos(), 1.3 * angles.sin())
    row = XKV().restored(context, [(16, 16)])
    torch.testing.assert_close(row.keys_HLd[0], context.keys_HLd[0], atol=1e-5, rtol=1e-5)


def test_contexts_do_not_mix():
    _, xkv, first = prefilled(seed=0)
    _, _, second = prefilled(seed=1)
    for done in (first, second, first):
        again = xkv.compress(done.context, done.rankings_HL["xkv"], done.context.tokens * (1 - 0.5))
        fresh = XKV().compress(done.context, done.rankings_HL["xkv"], done.context.tokens * (1 - 0.5))
        assert all(torch.equal(a, b) for a, b in zip(again.keys_HLd, fresh.keys_HLd, strict=True))


def test_rows_measure_bytes_and_a_ratio_out_of_reach_is_a_failed_row():
    backbone = tiny_backbone()
    names = ("knorm", "xkv")
    methods = {n: make_method(MethodConfig(name=n), MethodContext(backbone.geometry)) for n in names}
    evaluator = CellEvaluator(Experiment(), backbone, methods, {"git_commit": "", "versions": {}, "host": ""})
    sample = Sample("niah_single_1/0", "niah_single_1", "Page 1 tells of the harbour. " * 12, "What?", " It", ("7",), 4)
    cells = [
        GridCell(f"{n}-{ratio}", MethodConfig(name=n), Budget.of_ratio(ratio), "niah_single_1", "build", "")
        for n in names
        for ratio in (0.5, 0.99)
    ]
    rows, retention = evaluator.evaluate([Task(sample, tuple(cells), keep_retention=True)])
    by_cell = {row["cell_id"]: row for row in rows}
    assert by_cell.keys() == {cell.id for cell in cells}
    xkv, knorm = by_cell["xkv-0.5"], by_cell["knorm-0.5"]
    assert xkv["measured_ratio"] == 1 - xkv["kv_bytes"] / xkv["full_kv_bytes"]
    assert 0.5 <= xkv["measured_ratio"] < 0.55
    assert xkv["kept_min"] == xkv["context_tokens"]
    assert knorm["measured_ratio"] == pytest.approx(1 - knorm["kept_mean"] / knorm["context_tokens"])
    failed = by_cell["xkv-0.99"]
    assert (failed["status"], failed["error_class"]) == ("failed", "ValueError")
    assert "too short to factorise at ratio 0.99" in failed["error_message"]
    assert by_cell["knorm-0.99"]["status"] == "ok"
    assert [row["cell_id"] for row in retention] == ["knorm-0.5", "knorm-0.99", "xkv-0.5"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"group": 0}, "group=0 must be a number of layers"),
        ({"key_share": 1}, "key_share=1 must lie between 0 and 1"),
        ({"rank": 3}, "unknown parameter 'rank'. Allowed: group, key_share"),
    ],
)
def test_mistakes_are_named(params, message):
    with pytest.raises(UserError, match=message):
        make_method(MethodConfig(name="xkv", params=params), MethodContext(tiny_backbone().geometry))
