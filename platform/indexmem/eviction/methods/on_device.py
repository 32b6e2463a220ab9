"""Lets kvpress' scorers run ahead of the device.

They protect tokens by padding scores with `scores.max().item() + 1`. `item` waits for the device, in each layer and
method; a GPU then idles while the next kernels are prepared. Here the value stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class OnDevice(TorchFunctionMode):
    """Within it `tensor.item()` is the tensor, and `pad` takes such a value. Nothing else changes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.item:
            return args[0]
        if func is F.pad and isinstance(kwargs.get("value"), Tensor):
            return _pad(args[0], args[1], kwargs["value"])
        return func(*args, **kwargs)


def _pad(values: Tensor, room: Sequence[int], value: Tensor) -> Tensor:
    """`value` (a scalar) before and after the last dimension; `room`: how many of each."""
    before, after = room
    first, last = (value.to(values.dtype).expand(*values.shape[:-1], count) for count in (before, after))
    return torch.cat((first, values, last), dim=-1)
