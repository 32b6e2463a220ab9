"""Locret's retention heads (arXiv 2410.01805): one MLP per layer that predicts each token's causal importance.

    cis[t] = W_2 silu(W_1 [q_t; k_t; v_t])        all heads of token t, flattened; q and k before RoPE; no biases

A token is scored from itself alone, once, when it is written: no query is needed. As in the authors' code, q and k
are the projections before rotation (after any q/k norm), so a score does not depend on the position.

Shapes: B batch, L tokens, Q query heads, H KV heads, d head_dim.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from indexmem.eviction.stack import LayerStack
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry

NAME = "locret"  # of the module in a checkpoint


@dataclass(frozen=True)
class LocretShape:
    """What, besides the backbone's geometry, fixes the heads' parameters."""

    hidden: int = 1024

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class RetentionHead(nn.Module):
    """One layer's head: (H_q d + 2 H_kv d) -> hidden -> H_kv."""

    def __init__(self, shape: LocretShape, geometry: Geometry) -> None:
        super().__init__()
        width = geometry.attention_width + 2 * geometry.kv_heads * geometry.head_dim
        self.inner = nn.Linear(width, shape.hidden, bias=False)
        self.outer = nn.Linear(shape.hidden, geometry.kv_heads, bias=False)

    def forward(self, query_pre_BQLd: Tensor, key_pre_BHLd: Tensor, value_BHLd: Tensor) -> Tensor:
        """Predicted importance [B, H, L]; computes in the head's own dtype."""
        states = (query_pre_BQLd, key_pre_BHLd, value_BHLd)
        flat_BLw = torch.cat([x.to(self.inner.weight.dtype).transpose(1, 2).flatten(2) for x in states], dim=-1)
        scores_BLH: Tensor = self.outer(F.silu(self.inner(flat_BLw)))
        return scores_BLH.transpose(1, 2)


class LocretStack(LayerStack[LocretShape]):
    """The retention heads of a backbone, one for each layer."""

    SHAPE = LocretShape

    def __init__(self, shape: LocretShape, geometry: Geometry) -> None:
        super().__init__(shape, geometry, (RetentionHead(shape, geometry) for _ in range(geometry.layers)))

    def predict(self, tap: LayerTap) -> Tensor:
        """Importance [B, H, L] that the tapped layer's head gives to each token."""
        scores_BHL: Tensor = self[tap.layer](tap.query_pre_BQLd, tap.key_pre_BHLd, tap.value_BHLd)
        return scores_BHL

    @classmethod
    def load(cls, folder: str | Path) -> LocretStack:
        """The trained heads of a checkpoint folder (fp32, on CPU). Raises UserError when it holds none."""
        return cls.restore(folder, NAME)
