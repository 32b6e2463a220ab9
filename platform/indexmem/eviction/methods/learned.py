"""Methods with distilled weights.

Shapes: B batch, G score rows (1, or KV heads), H KV heads, L context tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from indexmem.config.modules import Across
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_geometry, read_config, weights_hash
from indexmem.eviction.context import IndexerKeys, RowCache
from indexmem.eviction.indexer import INDEXER, IndexerShape, IndexerStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.decode_indexer import IndexerDecodeScorer
from indexmem.eviction.reads import HIDDEN
from indexmem.eviction.selection import PER_HEAD, PerHead, Shared
from indexmem.models.attention import LayerTap


class IndexerScores(EvictionMethod):
    """Scores of a given indexer. A score row of scope `layer` serves all KV heads."""

    def __init__(self, indexers: IndexerStack, selection: PerHead | Shared = PER_HEAD) -> None:
        self.indexers = indexers
        self.per_head, self.layers_alike = indexers.shape.rows > 1, indexers.shape.share_every
        self.selection = selection
        # Scores that the next layers of a sharing group use again, by context length: training scores batches of
        # several lengths side by side, layer by layer.
        self._shared_BGL: dict[int, Tensor] = {}
        self._written_at: int | None = None  # the layer whose scores they are, until another layer uses them
        self._keys: dict[int, IndexerKeys] = {}  # of the context scored last

    def score(self, tap: LayerTap) -> Tensor:
        batch, kv_heads, length = tap.key_BHLd.shape[:3]
        indexer = self.indexers.owned_by(tap.layer)
        if indexer is not None:
            lengths_B = torch.full((batch,), length, device=tap.key_BHLd.device)
            with torch.no_grad():
                features = indexer.features_of(tap)
                importance_BGL = indexer.importance(features, lengths_B)
            if tap.layer != self._written_at:
                self._shared_BGL, self._written_at = {}, tap.layer
            self._shared_BGL[length] = importance_BGL
            if tap.layer == 0:
                self._keys = {}  # not cleared in place: rows of the context before still hold it
            self._keys[tap.layer] = indexer.keys(features)
        else:
            self._written_at = None
        assert length in self._shared_BGL, "layers are visited in order"
        return self._shared_BGL[length].expand(batch, kv_heads, length)

    def indexer_keys(self) -> Mapping[int, IndexerKeys]:
        return self._keys

    def decode_scorer(self, rows: Sequence[RowCache]) -> IndexerDecodeScorer:
        return IndexerDecodeScorer(self.indexers, rows)

    def indexer_bytes(self, lengths: Sequence[Sequence[int]], element_size: int) -> int:
        # Heads that keep different tokens need their own copies of the (shared) indexer keys; all heads of one score
        # row keep the same.
        shape = self.indexers.shape
        tokens = sum(sum(length_H[: shape.rows]) for length_H in lengths[:: shape.share_every])
        return tokens * shape.numbers_per_key * element_size


class LearnedIndexer(IndexerScores):
    """The distilled indexer of a checkpoint folder."""

    def __init__(self, folder: str, context: MethodContext) -> None:
        check_geometry(folder, context.geometry)
        indexers = IndexerStack.load(folder).to(context.device).eval().requires_grad_(False)
        if context.layer_by_layer and indexers.shape.reads != HIDDEN:
            raise UserError(
                f"eviction.when=before_prefill chooses tokens before they have K and V, and this indexer reads them "
                f"(reads={indexers.shape.reads}). Use eviction.when=after_prefill."
            )
        trained = read_config(folder)["trained"]
        selection = selection_of(context.share, context.floor, trained, indexers.shape)
        if selection.across == "model" and context.layer_by_layer and context.share is None:
            selection = replace(selection, across="layer")
        super().__init__(indexers, selection)
        shared = f"/{selection.across}/{context.floor}" if selection.shares else ""
        self.checkpoint = weights_hash(folder, INDEXER) + shared


def selection_of(
    share: Across | None, floor: float, trained: Mapping[str, Any], shape: IndexerShape
) -> PerHead | Shared:
    """Which heads share a budget by an indexer's scores; without a `share`, as trained (`trained_share`).

    Raises UserError where heads have nothing to share out.
    """
    across = share or trained_share(trained, shape.rows)
    if across != "head" and shape.rows == 1:
        raise UserError(
            f"share={across}: this indexer was trained with scope=layer and gives all KV heads of a layer the same "
            "scores, so there is nothing to share out. Use indexer.share=head (of a press: share='head'), or distil "
            "one with scope=kv_head."
        )
    return PER_HEAD if across == "head" else Shared(across, floor, alike=shape.share_every)


def trained_share(trained: Mapping[str, Any], rows: int) -> Across:
    """Which heads share a budget by an indexer's scores: all, if it was trained for scores that compare.

    `trained` is a checkpoint's record of its training, or a spec with the same sections.
    """
    chosen: Across | None = trained.get("indexer", {}).get("share")
    if chosen is not None:
        return chosen
    calibrated = trained.get("target", {}).get("loss", "kl") != "kl"
    return "model" if calibrated and rows > 1 else "head"
