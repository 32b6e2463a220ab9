"""The streamed teacher and the KL against their dense fp64 references."""

import itertools

import pytest
import torch

from indexmem.config.modules import TargetConfig
from indexmem.distill.losses import importance_kl
from indexmem.distill.targets import pooled_target, target_scale
from indexmem.eviction.reference import dense_kl, dense_target

LENGTHS = (33, 12, 1)
CASES = list(itertools.product(["logits", "logprobs"], ["max", "mean"], [1, 2]))


@pytest.mark.parametrize(("source", "heads", "rows"), CASES)
@pytest.mark.parametrize("block", [5, 64])
def test_target_equals_the_dense_reference(source, heads, rows, block):
    torch.manual_seed(0)
    query, key = torch.randn(3, 4, 33, 8), torch.randn(3, 2, 33, 8)
    config = TargetConfig(source=source, loss="kl", heads=heads)
    fast = pooled_target(query, key, torch.tensor(LENGTHS), rows=rows, scale=0.3, config=config, block=block)
    for b, length in enumerate(LENGTHS):
        slow = dense_target(query[b, :, :length], key[b, :, :length], 0.3, rows=rows, source=source, heads=heads)
        torch.testing.assert_close(fast[b, :, :length].double(), slow, atol=1e-5, rtol=1e-5)
        assert (fast[b, :, length:] == -torch.inf).all()


def test_scales():
    assert target_scale(TargetConfig(), 0.125, 4096) == 0.125
    assert target_scale(TargetConfig(source="logits", loss="kl", scale="model"), 0.125, 4096) == pytest.approx(1 / 64)


@pytest.mark.parametrize("sinks", [0, 4])
def test_kl_and_its_gradient_equal_the_dense_reference(sinks):
    torch.manual_seed(1)
    target = torch.randn(3, 2, 33, dtype=torch.float64)
    importance = torch.randn(3, 2, 33, dtype=torch.float64, requires_grad=True)
    for b, length in enumerate(LENGTHS):
        target[b, :, length:] = -torch.inf  # as pooled_target leaves padding
    fast = importance_kl(target, importance, torch.tensor(LENGTHS), sinks)
    slow = []
    for b, length in enumerate(LENGTHS):
        rows = [dense_kl(target[b, g, :length], importance[b, g, :length], sinks) for g in range(2)]
        slow.append(torch.stack(rows).mean() if length > sinks else torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(fast, torch.stack(slow))
    (fast_gradient,) = torch.autograd.grad(fast.sum(), importance, retain_graph=True)
    (slow_gradient,) = torch.autograd.grad(torch.stack(slow).sum(), importance)
    torch.testing.assert_close(fast_gradient, slow_gradient)
    assert fast_gradient.isfinite().all()


def test_kl_is_zero_only_for_equal_distributions():
    values = torch.randn(1, 1, 20, dtype=torch.float64)
    lengths = torch.tensor([20])
    assert importance_kl(values, values + 3.0, lengths, 4).item() == pytest.approx(0, abs=1e-12)
    assert importance_kl(values, values.roll(1, -1), lengths, 4).item() > 0.01
