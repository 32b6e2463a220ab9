"""Gradients of a layer's loss, taken at once: what the loss was computed from need not outlive the layer.

A layer's loss is computed from its hidden states and queries, gigabytes for a long context. Were the losses of all
layers kept as graphs until one backward pass at the end, so would be the inputs of all layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Settled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: tuple[Tensor, ...], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(upstream * gradient for gradient in ctx.gradients)


def settle(loss: Tensor, parameters: Iterable[Tensor], retain_graph: bool = False) -> Tensor:
    """The same scalar, whose backward pass only scales the gradients of `parameters` that are taken here.

    `retain_graph` leaves the graph for other losses that share parts of it. Weights that the loss does not depend on
    get no gradient from it.
    """
    wanted = list(parameters)
    found = torch.autograd.grad(loss, wanted, retain_graph=retain_graph, allow_unused=True)
    used = [(weight, gradient) for weight, gradient in zip(wanted, found) if gradient is not None]
    with torch.enable_grad():
        settled: Tensor = _Settled.apply(loss.detach(), tuple(g for _, g in used), *(w for w, _ in used))
    return settled
