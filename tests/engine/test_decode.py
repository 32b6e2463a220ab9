"""Batched decoding of ragged caches gives each row what it would get alone, and what transformers gives."""

import pytest
import torch
from dense_reference import dense_attention
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import FAMILIES, random_ids, tiny_backbone, tiny_model

from indexmem.config.schema import MethodConfig
from indexmem.engine import decode as decoding
from indexmem.engine.cache import RaggedCache
from indexmem.engine.decode import DecodeRow, decode, plan_batches
from indexmem.engine.prefill import prefill
from indexmem.eviction.context import RowCache
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

PLENTY = 2**34
NAMES = ("full", "snapkv", "pyramidkv", "knorm", "random")


def rows_of(family, lengths=(180, 140), limits=(12, 7)):
    """Rows of two samples, all methods and ratios: ragged over rows, layers (pyramidkv), questions and limits."""
    backbone = tiny_backbone(family)
    context = MethodContext(backbone.geometry)
    methods = {name: make_method(MethodConfig(name=name), context) for name in NAMES}
    rows = []
    for sample, (length, limit) in enumerate(zip(lengths, limits)):
        done = prefill(backbone, random_ids(length, seed=sample), methods, sinks=4)
        question = random_ids(5 + 4 * sample, seed=10 + sample)
        for name, method in methods.items():
            for ratio in (0.0,) if name == "full" else (0.25, 0.5, 0.9):
                cache = method.compress(done.context, done.rankings_HL[name], done.context.tokens * (1 - ratio))
                rows.append(DecodeRow(cache, length, question, limit))
    return backbone, rows


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_what_each_row_gives_alone(family):
    backbone, rows = rows_of(family)
    together = decode(backbone, rows, PLENTY)
    assert {answer.batch for answer in together} == {len(rows)}
    alone = [decode(backbone, [row], PLENTY)[0] for row in rows]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert len({tuple(a.token_ids) for a in together}) > 2, "the rows must not all agree, or this shows nothing"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_cache_gives_what_transformers_generates(family):
    context, question = random_ids(90), random_ids(6, seed=3)
    backbone = tiny_backbone(family)
    method = make_method(MethodConfig(name="full"), MethodContext(backbone.geometry))
    done = prefill(backbone, context, {"full": method}, sinks=4)
    row = DecodeRow(method.compress(done.context, done.rankings_HL["full"], done.context.tokens), 90, question, 15)
    ids = torch.tensor([context + question])
    expected = tiny_model(family, "sdpa").generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False, use_cache=True
    )
    assert decode(backbone, [row], PLENTY)[0].token_ids == expected[0, ids.shape[1] :].tolist()


def test_rows_stop_at_their_own_end():
    backbone, rows = rows_of("llama", limits=(12, 3))
    free = decode(backbone, rows, PLENTY)
    assert {len(a.token_ids) for a in free[len(rows) // 2 :]} == {3}
    # Let the third token of row 0 end answers: rows that produce it stop there, the others go on.
    ending = free[0].token_ids[2]
    model = backbone.model
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = [1, ending]
    try:
        stopped = decode(backbone, rows, PLENTY)
    finally:
        model.generation_config.eos_token_id = before
    for with_end, without in zip(stopped, free):
        expected = without.token_ids
        if ending in expected:
            expected = expected[: expected.index(ending) + 1]
        assert with_end.token_ids == expected


def test_batches_that_do_not_fit_are_halved(monkeypatch):
    backbone, rows = rows_of("llama")
    expected = [a.token_ids for a in decode(backbone, rows, PLENTY)]
    real = decoding._decode_batch

    def small_memory(backbone, batch, config):
        if len(batch) > 5:
            raise torch.OutOfMemoryError("pretend")
        return real(backbone, batch, config)

    monkeypatch.setattr(decoding, "_decode_batch", small_memory)
    answers = decode(backbone, rows, PLENTY)
    assert [a.token_ids for a in answers] == expected
    assert max(a.batch for a in answers) <= 5
    monkeypatch.setattr(
        decoding, "_decode_batch", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("never fits"))
    )
    with pytest.raises(torch.OutOfMemoryError):
        decode(backbone, rows, PLENTY)


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 400))
def test_batches_hold_every_row_once_within_memory(sizes, limit):
    batches = plan_batches(sizes, limit)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch) == 1 or sum(sizes[i] for i in batch) <= limit


def test_attention_over_a_ragged_cache_equals_the_dense_reference():
    torch.manual_seed(0)
    kept = [torch.tensor([[0, 3, 4], [1, 2, 5]]), torch.tensor([[0], [7]])]
    keys, values = torch.randn(2, 8, 4), torch.randn(2, 8, 4)
    cache = RaggedCache([RowCache([keys], [values], [k]) for k in kept], room=4)
    cache.extend(torch.tensor([[True, True], [False, True]]))  # the second row's question is shorter
    new_keys, new_values, query = torch.randn(2, 2, 2, 4), torch.randn(2, 2, 2, 4), torch.randn(2, 6, 2, 4)
    cache.update(new_keys, new_values, 0)
    out = cache.attend(0, query, new_keys, new_values, 0.5).transpose(1, 2)
    assert out.isfinite().all()
    for row, new in ((0, 2), (1, 1)):
        index = kept[row][..., None].expand(-1, -1, 4)
        row_keys = torch.cat((keys.gather(1, index), new_keys[row, :, 2 - new :]), 1)
        row_values = torch.cat((values.gather(1, index), new_values[row, :, 2 - new :]), 1)
        old = kept[row].shape[1]
        mask = torch.cat((torch.ones(new, old, dtype=torch.bool), torch.ones(new, new, dtype=torch.bool).tril()), 1)
        expected = dense_attention(query[row, :, 2 - new :], row_keys, row_values, mask, 0.5)
        torch.testing.assert_close(out[row, :, 2 - new :].double(), expected, atol=1e-5, rtol=1e-5)
