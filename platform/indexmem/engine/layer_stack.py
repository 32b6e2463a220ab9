"""Layers of one prefill put side by side as a batch, for methods that need no more of each than fits in memory.

Scoring a layer of a small model takes the GPU less time than launching its kernels takes the host. K and V stay in
memory anyway, so what reads them and a few queries alone can score many layers in one go.
Shapes: n layers of the stack, L context tokens, W last queries, Q query heads, d head_dim.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from indexmem.models.attention import LayerTap

# K and V of a stack's layers, in bytes: larger ones keep a device busy alone, and what scores them needs memory.
STACK_BYTES = {"cpu": 2 * 2**20, "cuda": 64 * 2**20}


class LayerStack:
    """Collects layers until they are worth a visit."""

    def __init__(self, queries: int, device: torch.device) -> None:
        """`queries`: W, of the context's last tokens."""
        self._queries, self._limit = queries, STACK_BYTES[device.type]
        self._layers: list[LayerTap] = []

    def add(self, tap: LayerTap) -> None:
        """Hold K, V and the last queries of a layer; its batch is one context."""
        first = max(0, tap.query_BQLd.shape[2] - self._queries)
        # Cloned: a slice would keep the hidden states and the queries of all tokens alive.
        nothing_1L0, last_1QWd = tap.hidden_BLD[..., :0].clone(), tap.query_BQLd[:, :, first:].clone()
        self._layers.append(replace(tap, hidden_BLD=nothing_1L0, query_BQLd=last_1QWd))

    @property
    def is_full(self) -> bool:
        """Whether one layer more would be too much."""
        held = sum(tap.key_BHLd.nbytes + tap.value_BHLd.nbytes for tap in self._layers)
        return held + held // max(1, len(self._layers)) > self._limit

    def take(self) -> LayerTap | None:
        """All layers as one tap whose batch is them, with the first one's module; None if there are none."""
        layers, self._layers = self._layers, []
        if len(layers) < 2:
            return layers[0] if layers else None
        return replace(
            layers[0],
            hidden_BLD=torch.cat([tap.hidden_BLD for tap in layers]),
            query_BQLd=torch.cat([tap.query_BQLd for tap in layers]),
            key_BHLd=torch.cat([tap.key_BHLd for tap in layers]),
            value_BHLd=torch.cat([tap.value_BHLd for tap in layers]),
        )
