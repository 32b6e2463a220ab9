"""The streamed teacher and the losses against their dense fp64 references."""

import itertools
import math

import pytest
import torch
from dense_reference import dense_kl, dense_target

from indexmem.config.modules import TargetConfig
from indexmem.distill.losses import LOSSES, importance_bce, importance_kl, importance_mse
from indexmem.distill.targets import pooled_target, target_scale
from indexmem.eviction.indexer import Indexer, IndexerShape

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


def loop_bce(weight, score):
    """The weight as the probability of a token, sigmoid(score - 4) as its prediction."""
    predicted = 1 / (1 + (4 - score).exp())
    return -(weight * predicted.log() + (1 - weight) * (1 - predicted).log())


SLOW = {
    "bce": lambda log_weight, score: loop_bce(min(1.0, math.exp(log_weight)), score),
    "mse": lambda log_weight, score: (score - max(log_weight, -14.0)) ** 2,
}


@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize(("name", "loss"), [("bce", importance_bce), ("mse", importance_mse)])
def test_losses_of_single_scores_and_their_gradients_equal_a_loop(name, loss, sinks):
    """With a row of padding, one of sinks alone, weights of nothing, and one that rounding made more than 1."""
    assert LOSSES[name] is loss
    torch.manual_seed(1)
    lengths = (33, 12, 3, 0)
    target = -6 * torch.rand(4, 2, 33, dtype=torch.float64)
    target[0, 0, 7:10] = torch.tensor([1e-7, -20.0, -torch.inf])
    importance = (3 * torch.randn(4, 2, 33, dtype=torch.float64)).requires_grad_()
    for b, length in enumerate(lengths):
        target[b, :, length:] = -torch.inf
    fast = loss(target, importance, torch.tensor(lengths), sinks)
    slow = []
    for b, length in enumerate(lengths):
        keys = [(g, t) for g in range(2) for t in range(sinks, length)]
        each = [SLOW[name](target[b, g, t].item(), importance[b, g, t]) for g, t in keys]
        slow.append(torch.stack(each).mean() if each else torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(fast, torch.stack(slow))
    (fast_gradient,) = torch.autograd.grad(fast.sum(), importance, retain_graph=True)
    (slow_gradient,) = torch.autograd.grad(torch.stack(slow).sum(), importance)
    torch.testing.assert_close(fast_gradient, slow_gradient)
    assert fast[3] == 0 and (fast_gradient[3] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_only_losses_of_single_scores_order_tokens_across_heads(name):
    """Two heads that attend to the same tokens, one of them 20 times less: which of the 24 pairs is worth more?"""
    torch.manual_seed(0)
    target = torch.linspace(-6.0, -0.5, 12)[torch.randperm(12)].repeat(1, 2, 1)
    target[0, 1] -= 3.0
    shape = IndexerShape("kv_head", heads=2, dim=4, activation="relu", rows=2, token_term=16)
    indexer, hidden, query = Indexer(shape, 16, 16), torch.randn(1, 12, 16), torch.randn(1, 2, 12, 8)
    lengths = torch.tensor([12])
    optimiser = torch.optim.Adam(indexer.parameters(), lr=0.02)
    for _ in range(400):
        optimiser.zero_grad()
        LOSSES[name](target, indexer(hidden, query, lengths), lengths, 0).mean().backward()
        optimiser.step()
    scores = indexer(hidden, query, lengths)[0].detach()
    within = [scores[head].argsort().tolist() == target[0, head].argsort().tolist() for head in range(2)]
    assert within == [True, True], "converged"
    first, second = scores[0, :, None] - scores[1], target[0, 0, :, None] - target[0, 1]
    clear = second.abs() > 0.2
    agree = (first.sign() == second.sign())[clear].double().mean().item()
    assert agree == 1.0 if name != "kl" else agree < 0.8
