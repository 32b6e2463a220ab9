"""The indexer's linear part: its addends, alpha and unit give q~ and alpha back, whatever their range."""

import pytest
import torch

from indexmem.kernels import linear_part as module
from indexmem.kernels.linear_part import ADDENDS_OF, linear_part


@pytest.mark.parametrize("dtype", ADDENDS_OF)
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e6])
def test_addends_in_their_unit_are_the_sum_over_heads(device, monkeypatch, dtype, size):
    """With more blocks than are read at once, rows of different sizes, and NaNs at padded queries."""
    monkeypatch.setattr(module, "QUERIES", 16)
    monkeypatch.setattr(module, "MAXIMA", 2)
    torch.manual_seed(0)
    lengths = (70, 33)
    q = torch.randn(2, 70, 2, 3, 5).to(device, dtype)
    alpha = (size * torch.randn(2, 2, 70, 3) * torch.tensor([1.0, 1e-3])[:, None, None]).transpose(1, 2).to(device)
    exact = (alpha.double()[..., None] * q.double()).sum(3)
    q[1, 33:], alpha[1, 33:] = torch.nan, torch.inf
    linear, scaled, unit = linear_part(q, alpha, torch.tensor(lengths, device=device))
    for b, n in enumerate(lengths):
        for row in range(2):
            found, largest = linear[b, :n, row].double().sum(1) * 2 * unit[b, row], exact[b, :n, row].abs().max()
            torch.testing.assert_close(found, exact[b, :n, row], atol=2e-6 * max(largest.item(), 1e-7), rtol=0)
            assert torch.equal(scaled[b, :n, row] * 2 * unit[b, row], alpha[b, :n, row])
