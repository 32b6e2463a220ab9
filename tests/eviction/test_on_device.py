"""Padding by a value that stays on the device, against kvpress' own code that reads it back."""

import pytest
import torch
from torch.nn import functional as F

from indexmem.eviction.methods.on_device import OnDevice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("room", [(0, 4), (3, 0), (2, 1)])
def test_padding_by_the_maximum_equals_that_by_a_number(dtype, room):
    scores = torch.randn(2, 3, 7, dtype=dtype)
    expected = F.pad(scores, room, value=scores.max().item() + 1)
    with OnDevice():
        found = F.pad(scores, room, value=scores.max().item() + 1)
    assert found.dtype == dtype and torch.equal(found, expected)


def test_other_padding_and_other_calls_are_as_ever():
    with OnDevice():
        assert isinstance(torch.tensor(2.5).item(), torch.Tensor)
        assert F.pad(torch.ones(2), (1, 0), value=3.0).tolist() == [3.0, 1.0, 1.0]
        assert F.pad(torch.ones(1, 1, 2, 2), (1, 1, 1, 1)).shape == (1, 1, 4, 4)
    assert torch.tensor(2.5).item() == 2.5
