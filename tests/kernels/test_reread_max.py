"""The kernel of the second reading against the dense fp64 reference, and where `reconstruction_target` calls it."""

from dataclasses import replace

import pytest
import torch
from dense_reference import dense_reread_target
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indexmem.distill.targets import reconstruction_target
from indexmem.kernels import reread_max as module
from indexmem.kernels.dispatch import can_run
from indexmem.models.rereading import Readings, Reread

SCALE = 0.3
BEYOND = 1e3  # finite: a maximum may pass over NaNs
TOLERANCE = {"atol": 3e-5, "rtol": 3e-5}


def reread(lengths, request, chunk, heads, kv_heads, dim, dtype, device):
    """Both readings' states, strided as attention gets them; what no chunk or document has would win."""
    torch.manual_seed(0)
    readings = Readings.of(torch.tensor(lengths, device=device), request, chunk)
    tokens = readings.positions_1N.shape[1]
    query, key = (torch.randn(1, tokens, n, dim).to(device, dtype).transpose(1, 2) for n in (heads, kv_heads))
    query_RQWd, key_RHWd = (readings.split_second(x, dim=2) for x in (query, key))
    key_BHLd = readings.split_first(key, dim=2)
    lse_RQW = torch.randn(query_RQWd.shape[:3]).to(device)
    for row, part in enumerate(readings.chunks):
        query_RQWd[row, :, part.tokens :] = BEYOND * torch.randn(dim).to(device, dtype)
        lse_RQW[row, :, part.tokens :] = -BEYOND
    for document, length in enumerate(lengths):
        key_BHLd[document, :, length:] = BEYOND
    tables = torch.empty(2, len(readings.chunks), 0, 0)
    return Reread(readings.chunks, query_RQWd, key_RHWd, key_RHWd, lse_RQW, *tables, readings.spans_R4), key_BHLd


def assert_equal_to_the_reference(target, again, key_BHLd, **options):
    expected = torch.full(target.shape, -torch.inf, dtype=torch.float64)
    for part, query_QWd, lse_QW in zip(again.chunks, again.query_RQWd.cpu(), again.lse_RQW.cpu()):
        key_HCd = key_BHLd[part.document, :, part.start : part.stop].cpu()
        lse = lse_QW[:, : part.tokens] if options["normalised"] else None
        expected[part.document, :, part.start : part.stop] = dense_reread_target(
            query_QWd[:, : part.tokens], key_HCd, SCALE, rows=options["rows"], heads=options["heads"], lse_QW=lse
        )
    torch.testing.assert_close(target.cpu().double(), expected, **TOLERANCE)


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    request=st.sampled_from([0, 3, 70]),
    chunk=st.sampled_from([16, 60, 129, 1000]),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    dim=st.sampled_from([32, 64, 80, 96, 128]),
    one_row=st.booleans(),
    heads=st.sampled_from(["max", "mean"]),
    normalised=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    queries=st.sampled_from([16, 64, 256]),
)
@example([40], 0, 1000, 1, 2, 256, True, "max", True, torch.bfloat16, 256)
@example([150, 3, 61], 3, 60, 2, 2, 80, True, "mean", True, torch.bfloat16, 16)
@example([130, 7], 70, 129, 2, 3, 96, False, "max", True, torch.float32, 64)
def test_targets_equal_the_dense_reference(
    device, lengths, request, chunk, kv_heads, group, dim, one_row, heads, normalised, dtype, queries
):
    again, key_BHLd = reread(lengths, request, chunk, kv_heads * group, kv_heads, dim, dtype, device)
    options = {"rows": 1 if one_row else kv_heads, "heads": heads, "normalised": normalised}
    assert can_run(again.query_RQWd, key_BHLd), "or another route is tested"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "pooled_chunk", lambda *_: queries)
        target = reconstruction_target(again, key_BHLd, scale=SCALE, **options)
    assert target.dtype == torch.float32
    assert_equal_to_the_reference(target, again, key_BHLd, **options)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("heads", ["max", "mean"])
@pytest.mark.parametrize("normalised", [True, False])
def test_the_kernel_takes_the_place_of_blocks(device, monkeypatch, rows, heads, normalised):
    again, key_BHLd = reread((90, 20), 3, 40, 4, 2, 64, torch.bfloat16, device)
    options = {"rows": rows, "scale": SCALE, "heads": heads, "normalised": normalised}
    calls = []
    kernel = module.reread_max
    monkeypatch.setattr(module, "reread_max", lambda *given, **named: calls.append(1) or kernel(*given, **named))
    by_kernel = reconstruction_target(again, key_BHLd, **options)
    in_blocks = reconstruction_target(again, key_BHLd, block=7, **options)
    assert calls == [1]
    torch.testing.assert_close(by_kernel, in_blocks, **TOLERANCE)


def test_hundreds_of_short_chunks(device):
    lengths = [1 + 5 * number % 17 for number in range(130)]
    again, key_BHLd = reread(lengths, 2, 6, 2, 1, 16, torch.float32, device)
    assert len(again.chunks) > 200
    options = {"rows": 1, "heads": "max", "normalised": True}
    target = reconstruction_target(again, key_BHLd, scale=SCALE, **options)
    assert_equal_to_the_reference(target, again, key_BHLd, **options)


def test_any_strides(device):
    """As if heads lay before tokens, dims before both, and an lse were part of a wider tensor."""
    again, key_BHLd = reread((90, 20), 3, 40, 4, 2, 64, torch.float32, device)
    expected = reconstruction_target(again, key_BHLd, rows=2, scale=SCALE)
    swapped = again.query_RQWd.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    lse_RQW = again.lse_RQW.repeat_interleave(2, dim=2)[..., ::2]
    other = replace(again, query_RQWd=swapped, lse_RQW=lse_RQW)
    assert torch.equal(expected, reconstruction_target(other, key_BHLd.contiguous(), rows=2, scale=SCALE))
