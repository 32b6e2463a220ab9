"""One prefill of a context, scored by every method at once.

Prefill attends to the full context and does not depend on method or ratio, so one pass serves all cells of a sample.
Layers are scored as they go by; what is kept is K and V once, and one ranking per method and layer.
Shapes: H KV heads, L context tokens, K kept tokens, d head_dim.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from indexmem.eviction.methods import EvictionMethod
from indexmem.eviction.policy import keep, rank
from indexmem.models.attention import LayerTap, tapping
from indexmem.models.backbone import Backbone


@dataclass
class Prefill:
    """A context's cache and every method's rankings of it."""

    tokens: int
    keys_HLd: list[Tensor] = field(default_factory=list)  # one per layer, after RoPE
    values_HLd: list[Tensor] = field(default_factory=list)
    rankings_HL: dict[str, list[Tensor]] = field(default_factory=dict)  # method label -> one per layer
    seconds: float = 0.0  # the forward pass, scoring not counted
    score_seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)  # methods that could not score this context

    def kept(self, label: str, method: EvictionMethod, ratio: float) -> list[Tensor]:
        """Positions that a cell keeps, one ascending [H, K] per layer; K may differ between layers."""
        layers = len(self.keys_HLd)
        return [
            keep(ranking, method.kept(self.tokens, ratio, layer, layers))
            for layer, ranking in enumerate(self.rankings_HL[label])
        ]


@torch.inference_mode()
def prefill(backbone: Backbone, context_ids: list[int], methods: Mapping[str, EvictionMethod], sinks: int) -> Prefill:
    """Run the backbone over one context and rank its tokens by every method."""
    result = Prefill(tokens=len(context_ids))
    result.rankings_HL = {label: [] for label in methods}
    result.score_seconds = dict.fromkeys(methods, 0.0)

    def visit(tap: LayerTap) -> None:
        result.keys_HLd.append(tap.key_BHLd[0])
        result.values_HLd.append(tap.value_BHLd[0])
        for label, method in methods.items():
            if label in result.errors:
                continue
            started = _clock(backbone.device)
            try:
                result.rankings_HL[label].append(rank(method.score(tap)[0], sinks))
            except (ValueError, AssertionError, RuntimeError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise  # not the method's fault: the caller has a smaller batch to try
                result.errors[label] = error
            result.score_seconds[label] += _clock(backbone.device) - started

    started = _clock(backbone.device)
    ids = torch.tensor([context_ids], device=backbone.device)
    with tapping(backbone.model, visit) as kwargs:
        backbone.model.get_decoder()(ids, use_cache=False, **kwargs)
    result.seconds = _clock(backbone.device) - started - sum(result.score_seconds.values())
    return result


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
