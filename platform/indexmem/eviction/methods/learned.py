"""Methods with distilled weights.

Shapes: B batch, G score rows (1, or KV heads), H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from indexmem.eviction.checkpoint import check_geometry, load_indexers, weights_hash
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.models.attention import LayerTap


class LearnedIndexer(EvictionMethod):
    """The distilled indexer; a layer-scope score row serves all KV heads."""

    def __init__(self, folder: str, context: MethodContext) -> None:
        check_geometry(folder, context.geometry)
        self.indexers = load_indexers(folder).to(context.device).eval().requires_grad_(False)
        self.checkpoint = weights_hash(folder)

    def score(self, tap: LayerTap) -> Tensor:
        batch, kv_heads, length = tap.key_BHLd.shape[:3]
        lengths_B = torch.full((batch,), length, device=tap.key_BHLd.device)
        with torch.no_grad():
            scores_BGL = self.indexers[tap.layer](tap.hidden_BLD, tap.query_pre_BQLd, lengths_B)
        return scores_BGL.expand(batch, kv_heads, length)

    def indexer_bytes(self, kept_HK: Sequence[Tensor], element_size: int) -> int:
        # Heads that keep different tokens need their own copies of the (shared) indexer keys.
        shape = self.indexers.shape
        return sum(kept.shape[1] for kept in kept_HK) * shape.rows * shape.dim * element_size
