"""Attention to kept tokens: blocks of queries, and the block mask with flex attention, against dense fp64 attention."""

import pytest
import torch
from dense_reference import dense_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from indexmem.engine.sparse_attention import (
    BLOCK,
    attend_by_block_mask,
    attend_in_query_blocks,
    attend_to_kept,
    block_mask,
)


def case(length: int, kept: int, heads: int = 2, group: int = 2, dim: int = 16, seed: int = 0):
    """Random tensors, and positions that differ between heads, from 0 on."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(heads * group, length, dim, generator=generator)
    key, value = torch.randn(2, heads, kept, dim, generator=generator)
    rows = [torch.randperm(length - 1, generator=generator)[: kept - 1] + 1 for _ in range(heads)]
    return query, key, value, torch.stack([torch.cat((torch.zeros(1), row.sort().values)).long() for row in rows])


def expected(query, key, value, kept, scaling):
    group = query.shape[0] // key.shape[0]
    mask = [kept[head // group] <= torch.arange(query.shape[1])[:, None] for head in range(query.shape[0])]
    heads = [
        dense_attention(query[head][None], key[head // group][None], value[head // group][None], mask[head], scaling)[0]
        for head in range(query.shape[0])
    ]
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_of_queries_give_what_one_block_gives(block):
    inputs = case(length=30, kept=9)
    out = attend_in_query_blocks(*inputs, 0.3, block)
    torch.testing.assert_close(out.double(), expected(*inputs, 0.3), atol=1e-5, rtol=1e-5)
    assert torch.equal(attend_to_kept(*inputs, 0.3), attend_in_query_blocks(*inputs, 0.3))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_heads_may_keep_different_numbers():
    """Positions of L are padding: no query sees them, whatever lies there."""
    query, key, value, kept = case(length=300, kept=140, group=2)
    kept[1, 9:] = 300
    key[1, 9:] = value[1, 9:] = 50.0
    short = expected(query[2:], key[1:, :9], value[1:, :9], kept[1:, :9], 0.3)
    for attend in (attend_in_query_blocks, attend_by_block_mask):
        out = attend(query, key, value, kept, 0.3).double()
        torch.testing.assert_close(out[:, 2:], short, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            out[:, :2], expected(query[:2], key[:1], value[:1], kept[:1], 0.3), atol=1e-5, rtol=1e-5
        )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("length", "kept", "group"), [(300, 140, 3), (256, 128, 1), (200, 200, 2), (130, 1, 2)])
def test_flex_attention_gives_the_same(length, kept, group):
    inputs = case(length, kept, group=group)
    out = attend_by_block_mask(*inputs, 0.3)
    torch.testing.assert_close(out, attend_in_query_blocks(*inputs, 0.3), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.double(), expected(*inputs, 0.3), atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 700), share=st.floats(0.01, 1.0), seed=st.integers(0, 9), early=st.booleans())
def test_the_block_mask_is_the_dense_mask(length, share, seed, early):
    """A full block is seen whole, a partial one in part, and what is neither is not seen at all."""
    kept = case(length, max(1, int(length * share)), group=1, seed=seed)[3]
    if early:  # one head keeps the beginning
        kept[0] = torch.arange(kept.shape[1])
    padded = torch.nn.functional.pad(kept, (0, -kept.shape[1] % BLOCK), value=length).int()
    mask = block_mask(padded, length, group=2)
    queries, columns = -(-length // BLOCK) * BLOCK, padded.shape[1]
    sees = padded[:, None, :] <= torch.arange(queries)[:, None]
    sees[:, length:] = sees[:, length - 1 : length]  # beyond the last query anything may be said
    tiles = sees.view(2, queries // BLOCK, BLOCK, columns // BLOCK, BLOCK).transpose(2, 3).flatten(3)
    for query_head in range(4):
        head = query_head // 2
        for row in range(queries // BLOCK):
            full = mask.full_kv_indices[0, query_head, row, : mask.full_kv_num_blocks[0, query_head, row]]
            part = mask.kv_indices[0, query_head, row, : mask.kv_num_blocks[0, query_head, row]]
            assert full.tolist() == tiles[head, row].all(-1).nonzero().flatten().tolist()
            assert part.tolist() == (tiles[head, row].any(-1) & ~tiles[head, row].all(-1)).nonzero().flatten().tolist()
    rows, cols = torch.randint(length, (64,)), torch.randint(columns, (64,))
    assert torch.equal(mask.mask_mod(torch.tensor(0), torch.tensor(3), rows, cols), padded[1, cols] <= rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("length", "kept"), [(1024, 300), (900, 450), (2048, 2000), (130, 7)])
def test_the_kernel_gives_the_same_on_a_gpu(length, kept):
    inputs = case(length, kept, group=4, dim=64)
    out = attend_to_kept(*(x.cuda() for x in inputs), 0.3).cpu()
    torch.testing.assert_close(out.double(), expected(*inputs, 0.3), atol=5e-3, rtol=5e-3)
