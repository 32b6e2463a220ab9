"""Decode attention over ragged lanes equals a slow reference, whatever the shapes, lengths, types and strides."""

import pytest
import torch
from decode_reference import reference_decode_attention
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indexmem.kernels.decode_attention import SPAN, decode_attention, store_newest

TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of outputs about 1 in size


def a_batch(rows, heads, group, dim, kept_N, gap_R, opened, new, dtype, device, seed=0):
    """Random queries, and lanes that lie in storage in another order with other things between them."""
    generator = torch.Generator().manual_seed(seed)
    kept_N = torch.tensor(kept_N)
    order = torch.randperm(len(kept_N), generator=generator)
    size_N = kept_N + opened + 3
    begin_N = torch.empty_like(kept_N)
    begin_N[order] = size_N[order].cumsum(0) - size_N[order] + 2
    places = int(size_N.sum()) + 2
    # Wider storage: a token's numbers are neighbours, tokens are not. What no lane holds must never be read.
    keys_Cd, values_Cd = (torch.full((places, dim + 16), torch.nan) for _ in range(2))
    for lane, (begin, kept) in enumerate(zip(begin_N.tolist(), kept_N.tolist())):
        gap = gap_R[lane // heads]
        for first, last in ((begin, begin + kept), (begin + kept + gap, begin + kept + opened)):
            keys_Cd[first:last] = torch.randn(last - first, dim + 16, generator=generator)
            values_Cd[first:last] = torch.randn(last - first, dim + 16, generator=generator)
    query_RQnd = torch.randn(rows, new, heads * group, dim, generator=generator).transpose(1, 2)
    tensors = [x.to(device, dtype) for x in (query_RQnd, keys_Cd, values_Cd)]
    tables = [x.to(device) for x in (begin_N, kept_N, torch.tensor(gap_R), torch.tensor([opened]))]
    return tensors[0], tensors[1][:, :dim], tensors[2][:, :dim], *tables


def assert_equal_to_the_reference(batch, longest, span=SPAN, scaling=0.3):
    output_RQnd, lse_RQn = decode_attention(*batch, scaling, longest, span)
    expected_RQnd, expected_RQn = reference_decode_attention(*batch, scaling)
    tolerance = TOLERANCE[batch[0].dtype]
    assert output_RQnd.dtype == batch[0].dtype and lse_RQn.dtype == torch.float32
    torch.testing.assert_close(output_RQnd.double(), expected_RQnd, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse_RQn.double(), expected_RQn, atol=3e-6, rtol=3e-6)


@st.composite
def batches(draw):
    rows, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    new = draw(st.sampled_from((1, 1, 1, 2, 5)))
    opened = new if new > 1 else draw(st.integers(1, 6))
    kept = draw(st.lists(st.integers(0, 90), min_size=rows * heads, max_size=rows * heads))
    gap = draw(st.lists(st.integers(0, opened - 1), min_size=rows, max_size=rows))
    dtype = draw(st.sampled_from(tuple(TOLERANCE)))
    return {
        "rows": rows,
        "heads": heads,
        "group": draw(st.sampled_from((1, 3, 4, 7))),
        "dim": draw(st.sampled_from((32, 48, 64, 80))),
        "kept_N": kept,
        "gap_R": gap,
        "opened": opened,
        "new": new,
        "dtype": dtype,
    }


NOTHING = {"rows": 2, "heads": 1, "group": 2, "dim": 32, "kept_N": [0, 40], "dtype": torch.float32}


@settings(max_examples=20, deadline=None)
@given(batches(), st.sampled_from((16, 64)), st.integers(0, 70))
@example(NOTHING | {"gap_R": [1, 0], "opened": 1, "new": 1}, 16, 0)  # a lane that holds nothing at all
@example(NOTHING | {"gap_R": [3, 20], "opened": 20, "new": 20}, 16, 0)  # queries before their row's first token
def test_it_equals_the_reference(device, batch, span, spare):
    longest = max(batch["kept_N"]) + batch["opened"] + spare
    assert_equal_to_the_reference(a_batch(**batch, device=device), longest, span)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("dim", "group", "new"), [(128, 4, 1), (256, 2, 1), (96, 1, 3), (256, 2, 20)])
def test_it_equals_the_reference_with_the_launch_of_real_models(device, dtype, dim, group, new):
    kept_N, gap_R = [600, 3, 0, SPAN], [0, new - 1]
    batch = a_batch(2, 2, group, dim, kept_N, gap_R, new, new, dtype, device)
    assert_equal_to_the_reference(batch, 640, scaling=dim**-0.5)


def test_logits_far_from_zero_lose_nothing(device):
    query, keys, *others = a_batch(1, 1, 2, 32, [70], [0], 1, 1, torch.float32, device)
    assert_equal_to_the_reference((query * 40, keys * 3 - 40, *others), 71, span=16)


def test_a_row_gets_the_same_bits_in_any_batch(device):
    query, keys, values, begin, kept, gap, opened = a_batch(
        3, 2, 3, 32, [40, 300, 20, 7, 555, 1], [0, 0, 0], 4, 1, torch.float32, device
    )
    together = decode_attention(query, keys, values, begin, kept, gap, opened, 0.3, 1100)
    alone = decode_attention(query[:1], keys, values, begin[:2], kept[:2], gap[:1], opened, 0.3, 304)
    assert all(torch.equal(one[:1], other) for one, other in zip(together, alone))


@settings(max_examples=8, deadline=None)
@given(batches())
def test_the_newest_tokens_are_written_behind_all_others(device, batch):
    query, keys_Cd, values_Cd, begin_N, kept_N, _, opened_1 = a_batch(**batch, device=device)
    rows, heads, new = query.shape[0], batch["heads"], batch["new"]
    key_RHnd, value_RHnd = torch.randn(2, rows, new, heads, batch["dim"], device=device).to(query).transpose(2, 3)
    expected = keys_Cd.clone(), values_Cd.clone()
    for lane in range(rows * heads):
        last = int(begin_N[lane] + kept_N[lane] + opened_1)
        expected[0][last - new : last] = key_RHnd[lane // heads, lane % heads]
        expected[1][last - new : last] = value_RHnd[lane // heads, lane % heads]
    store_newest(key_RHnd, value_RHnd, keys_Cd, values_Cd, begin_N, kept_N, opened_1)
    torch.testing.assert_close((keys_Cd, values_Cd), expected, atol=0, rtol=0, equal_nan=True)
