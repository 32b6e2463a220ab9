"""Methods with distilled weights.

Shapes: B batch, G score rows (1, or KV heads), H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from indexmem.eviction.checkpoint import check_geometry, weights_hash
from indexmem.eviction.indexer import NAME, IndexerStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.models.attention import LayerTap


class IndexerScores(EvictionMethod):
    """Scores of an indexer at hand; a layer-scope score row serves all KV heads."""

    def __init__(self, indexers: IndexerStack) -> None:
        self.indexers = indexers
        self._shared_BGL: Tensor | None = None  # scores that the next layers of a sharing group use again

    def score(self, tap: LayerTap) -> Tensor:
        batch, kv_heads, length = tap.key_BHLd.shape[:3]
        indexer = self.indexers.owned_by(tap.layer)
        if indexer is not None:
            lengths_B = torch.full((batch,), length, device=tap.key_BHLd.device)
            with torch.no_grad():
                self._shared_BGL = indexer(tap.hidden_BLD, tap.query_pre_BQLd, lengths_B)
        assert self._shared_BGL is not None, "layers are visited in order"
        return self._shared_BGL.expand(batch, kv_heads, length)

    def indexer_bytes(self, kept_HK: Sequence[Tensor], element_size: int) -> int:
        # Heads that keep different tokens need their own copies of the (shared) indexer keys.
        shape = self.indexers.shape
        owners = kept_HK[:: shape.share_every]
        return sum(kept.shape[1] for kept in owners) * shape.rows * shape.dim * element_size


class LearnedIndexer(IndexerScores):
    """The distilled indexer of a checkpoint folder."""

    def __init__(self, folder: str, context: MethodContext) -> None:
        check_geometry(folder, context.geometry)
        super().__init__(IndexerStack.load(folder).to(context.device).eval().requires_grad_(False))
        self.checkpoint = weights_hash(folder, NAME)
