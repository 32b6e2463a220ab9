"""Locret's retention heads (arXiv 2410.01805): one MLP per layer that predicts each token's causal importance.

    cis[t] = W_2 silu(W_1 [q_t; k_t; v_t])        all heads of token t, flattened; q and k before RoPE; no biases

A token is scored from itself alone, once, when it is written: no query is needed. As in the authors' code, q and k
are the projections before rotation (after any q/k norm), so a score does not depend on the position.

Shapes: B batch, L tokens, Q query heads, H KV heads, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from indexmem.eviction.checkpoint import check_geometry, weights_hash
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.params import check_number
from indexmem.eviction.trained_layers import TrainedLayers
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry

LOCRET = "locret"  # of the module in a checkpoint


@dataclass(frozen=True)
class LocretShape:
    """What, besides the backbone's geometry, fixes the heads' parameters."""

    hidden: int = 1024


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


class LocretStack(TrainedLayers[LocretShape]):
    """The retention heads of a backbone, one for each layer."""

    SHAPE, NAME = LocretShape, LOCRET

    def __init__(self, shape: LocretShape, geometry: Geometry) -> None:
        super().__init__(shape, geometry, (RetentionHead(shape, geometry) for _ in range(geometry.layers)))

    def predict(self, tap: LayerTap) -> Tensor:
        """Importance [B, H, L] that the tapped layer's head gives to each token."""
        scores_BHL: Tensor = self[tap.layer](tap.query_pre_BQLd, tap.key_pre_BHLd, tap.value_BHLd)
        return scores_BHL


class Locret(EvictionMethod):
    """Locret (arXiv 2410.01805): keeps, per KV head, the tokens whose predicted importance is highest.

    `recent` tokens at the context's end rank before all others (after the sinks), the latest first: the local tokens
    that Locret always keeps. 0 by default, so that all methods obey the same rules.
    """

    def __init__(self, folder: str, context: MethodContext, recent: int = 0) -> None:
        """Raises UserError when the checkpoint is missing, fits another model or holds no retention heads."""
        check_number("recent", recent, least=0, example=100)
        check_geometry(folder, context.geometry)
        self.heads = LocretStack.load(folder).to(context.device).eval().requires_grad_(False)
        self.checkpoint = weights_hash(folder, LOCRET)
        self.recent = recent

    @torch.no_grad()
    def score(self, tap: LayerTap) -> Tensor:
        scores_BHL = self.heads.predict(tap)
        length = scores_BHL.shape[-1]
        first = max(0, length - self.recent)
        above_all = scores_BHL.amax(dim=(-2, -1), keepdim=True) + 1  # in every head: heads may share a budget
        scores_BHL[..., first:] = above_all + torch.arange(length - first, device=scores_BHL.device)
        return scores_BHL
