"""The teacher's kernels against the dense fp64 reference, as `pooled_target` calls them."""

import pytest
import torch
from dense_reference import dense_target
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indexmem.config.modules import TargetConfig
from indexmem.distill.targets import pooled_target
from indexmem.kernels import teacher_max as module
from indexmem.kernels.dispatch import can_run
from indexmem.kernels.row_lse import row_lse

SCALE = 0.3
TOLERANCE = {"atol": 3e-5, "rtol": 3e-5}


def states(lengths, heads, kv_heads, dim, dtype, device):
    """Queries and keys as attention gets them: heads and tokens swapped, so that heads lie between tokens."""
    torch.manual_seed(0)
    batch, length = len(lengths), max(lengths)
    query, key = torch.randn(batch, length, heads, dim), torch.randn(batch, length, kv_heads, dim)
    return (x.to(device, dtype).transpose(1, 2) for x in (query, key))


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 140), min_size=1, max_size=2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    dim=st.sampled_from([32, 64, 80, 128]),
    one_row=st.booleans(),
    source=st.sampled_from(["logits", "logprobs"]),
    heads=st.sampled_from(["max", "mean"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    chunk=st.sampled_from([16, 64, 256]),
)
@example([40], 1, 2, 256, True, "logprobs", "max", torch.bfloat16, 256)
@example([140, 3], 2, 2, 64, True, "logprobs", "mean", torch.bfloat16, 64)
def test_targets_equal_the_dense_reference(device, lengths, kv_heads, group, dim, one_row, source, heads, dtype, chunk):
    query, key = states(lengths, kv_heads * group, kv_heads, dim, dtype, device)
    rows = 1 if one_row else kv_heads
    config = TargetConfig(source=source, loss="kl", heads=heads)
    lengths_B = torch.tensor(lengths).to(device)
    assert can_run(query, key), "or another route is tested"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "pooled_chunk", lambda *_: chunk)
        target = pooled_target(query, key, lengths_B, rows=rows, scale=SCALE, config=config).cpu().double()
    assert target.shape == (len(lengths), rows, max(lengths))
    for b, n in enumerate(lengths):
        single = (query[b, :, :n].double().cpu(), key[b, :, :n].double().cpu())
        slow = dense_target(*single, SCALE, rows=rows, source=source, heads=heads)
        torch.testing.assert_close(target[b, :, :n], slow, **TOLERANCE)
        assert bool((target[b, :, n:] == -torch.inf).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sum_exp_of_rows_with_large_logits(device, dtype):
    """Logits of hundreds: without a running maximum the sum would overflow."""
    lengths = (150, 60)
    query, key = states(lengths, 4, 2, 64, dtype, device)
    query = query * 20
    lse = row_lse(query, key, torch.tensor(lengths).to(device), SCALE).cpu().double()
    logits = SCALE * query.double().cpu() @ key.double().cpu().repeat_interleave(2, 1).transpose(-1, -2)
    exact = logits.masked_fill(torch.ones(150, 150).triu(1).bool(), -torch.inf).logsumexp(-1)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(lse[b, :, :n], exact[b, :, :n], **TOLERANCE)
    assert bool(lse.isfinite().all()), "padded queries, too"


def test_a_log_sum_exp_that_is_known_is_used(device):
    lengths = torch.tensor([90, 20], device=device)
    query, key = states((90, 20), 4, 2, 64, torch.bfloat16, device)
    config = TargetConfig(source="logprobs")
    lse = row_lse(query, key, lengths, SCALE)
    own = pooled_target(query, key, lengths, rows=2, scale=SCALE, config=config)
    given_too = pooled_target(query, key, lengths, rows=2, scale=SCALE, config=config, lse_BQL=lse)
    higher = pooled_target(query, key, lengths, rows=2, scale=SCALE, config=config, lse_BQL=lse + 1)
    assert torch.equal(own, given_too)
    torch.testing.assert_close(higher, own - 1)


def test_padding_content_plays_no_part(device):
    lengths = torch.tensor([130, 50], device=device)
    query, key = states((130, 50), 4, 2, 32, torch.float32, device)
    before = pooled_target(query, key, lengths, rows=2, scale=SCALE, config=TargetConfig(source="logprobs"))
    query[1, :, 50:], key[1, :, 50:] = torch.nan, torch.nan
    assert torch.equal(
        before, pooled_target(query, key, lengths, rows=2, scale=SCALE, config=TargetConfig(source="logprobs"))
    )
