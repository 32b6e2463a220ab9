"""What DDP wraps: the trainees, and the frozen backbone that teaches them.

One frozen forward pass, over a text read once or twice; in each layer the tap computes each trainee's loss from what
attention sees. Losses are local: nothing is back-propagated through the backbone.

Gradients of a layer's loss are taken at once. The loss is computed from the layer's hidden states and queries,
gigabytes for a long context. If the losses of all layers were kept as graphs until one backward pass at the end, the
inputs of all layers would be kept, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from indexmem.config.modules import TargetConfig
from indexmem.distill.trainees.base import StepContext, Trainee
from indexmem.models.attention import LayerTap, tapping
from indexmem.models.backbone import Backbone
from indexmem.models.packed import PackedDocuments
from indexmem.models.prompt import encode
from indexmem.models.rereading import Readings


class DistillModule(nn.Module):
    """forward(ids, lengths, step) -> losses [trainees, layers]."""

    def __init__(self, backbone: Backbone, trainees: Sequence[Trainee], target: TargetConfig | None = None) -> None:
        """Texts are read twice if `target` asks for it."""
        super().__init__()
        self._chunk = target.chunk if target is not None and target.source == "reconstruction" else None
        self._request = tuple(encode(backbone.tokenizer, target.request)) if target is not None else ()
        self.trainees = nn.ModuleList(trainees)
        # In a tuple, not a submodule: DDP then neither broadcasts nor buckets the frozen weights, and state_dict()
        # holds only what is trained.
        self._frozen = (backbone,)

    def forward(self, ids_BL: Tensor, lengths_B: Tensor, step: StepContext, packed: bool = False) -> Tensor:
        """ids are right-padded, or `packed` into one row without padding; lengths count each sequence's real tokens.

        A trainee that has not started gives zeros.
        """
        (backbone,) = self._frozen
        trainees: list[Trainee] = list(self.trainees)  # type: ignore[arg-type]
        active = [trainee.starts_at() <= step.step for trainee in trainees]
        losses: list[list[Tensor]] = [[] for _ in trainees]

        def visit(tap: LayerTap) -> None:
            for trainee, running, collected in zip(trainees, active, losses):
                if running:
                    loss = trainee.layer_loss(tap, lengths_B, step)
                    collected.append(settle(loss, trainee.parameters(), trainee.goes_on(tap.layer)))

        documents = readings = None
        if self._chunk is not None:
            readings = Readings.of(lengths_B, len(self._request), self._chunk)
            ids_BL = readings.row(ids_BL if packed else readings.first.join(ids_BL), self._request)
        elif packed:
            documents = PackedDocuments.of(lengths_B)
        with torch.no_grad(), tapping(backbone.model, visit, documents=documents, readings=readings) as kwargs:
            backbone.model.get_decoder()(ids_BL, use_cache=False, **kwargs)
        layers = backbone.geometry.layers
        return torch.stack(
            [
                torch.stack(collected) if running else trainee.idle_loss().expand(layers)
                for trainee, running, collected in zip(trainees, active, losses)
            ]
        )


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
    """The loss again, as a scalar whose backward pass only scales the gradients of `parameters` that are taken here.

    `retain_graph` leaves the graph for other losses that share parts of it. Weights that the loss does not depend on
    get no gradient from it.
    """
    wanted = list(parameters)
    found = torch.autograd.grad(loss, wanted, retain_graph=retain_graph, allow_unused=True)
    used = [(weight, gradient) for weight, gradient in zip(wanted, found) if gradient is not None]
    with torch.enable_grad():
        settled: Tensor = _Settled.apply(loss.detach(), tuple(g for _, g in used), *(w for w, _ in used))
    return settled
