"""The trained indexer as a kvpress press.

Shapes: B batch, H KV heads, G layers' score rows, L context tokens, K kept tokens, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from kvpress import ScorerPress
from kvpress.utils import get_prerope_query_states
from torch import Tensor, nn
from transformers import PreTrainedModel

from indexmem.config.modules import FLOOR, Across
from indexmem.eviction.checkpoint import read_config, save_modules
from indexmem.eviction.indexer import INDEXER, IndexerStack
from indexmem.eviction.methods.learned import selection_of
from indexmem.eviction.methods.params import SharingConfig
from indexmem.eviction.modules_source import local_or_downloaded
from indexmem.eviction.press.common import check_fits, keep_best, take
from indexmem.eviction.press.shared_budget import SharedBudget, check_maskable, mask
from indexmem.eviction.press.sliding_masks import fit_masks
from indexmem.eviction.ranking import comparable
from indexmem.eviction.reads import READS
from indexmem.eviction.selection import PerHead, Shared
from indexmem.models.attention import layer_number
from indexmem.models.projection import unrotate

Trained = dict[str, Any]  # a checkpoint's record of how its weights came to be


@dataclass(frozen=True)
class _Seen:
    """What kvpress shows of a layer, as indexers read it."""

    hidden_BLD: Tensor
    key_BHLd: Tensor
    value_BHLd: Tensor
    rotary: tuple[Tensor, Tensor]

    @property
    def key_pre_BHLd(self) -> Tensor:
        return unrotate(self.key_BHLd, *self.rotary)


@dataclass(kw_only=True, eq=False)
class IndexerPress(ScorerPress):
    """Keeps what the distilled indexer (eviction/indexer.py) scores highest, and the first `n_sink` tokens always.

    `share` says which heads share a budget, and `floor` how much of an even one each keeps in any case
    (eviction/selection.py). What is evicted of a shared budget stays in the cache, and is masked in the cache that was
    filled last.
    """

    indexers: IndexerStack = field(repr=False)
    n_sink: int = 4
    share: Across | None = None  # None: as trained
    floor: float = FLOOR
    trained: Trained = field(default_factory=dict, repr=False)
    _shared_BGL: Tensor | None = field(default=None, init=False, repr=False)
    _budget: SharedBudget = field(default_factory=SharedBudget, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises UserError for a `share` or `floor` that is not allowed."""
        super().__post_init__()
        _ = self.selection  # raises

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        compression_ratio: float = 0.0,
        n_sink: int = 4,
        share: Across | None = None,
        floor: float = FLOOR,
    ) -> Self:
        """From a checkpoint folder or, where there is no such folder, a Hub id. Raises UserError if it is neither."""
        folder = local_or_downloaded(source)
        return cls(
            compression_ratio=compression_ratio,
            indexers=IndexerStack.load(folder).eval().requires_grad_(False),
            n_sink=n_sink,
            share=share,
            floor=floor,
            trained=read_config(folder)["trained"],
        )

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a checkpoint folder that `from_pretrained` and specs (`indexer.checkpoint`) read."""
        return save_modules({INDEXER: self.indexers}, folder, self.trained)

    @property
    def selection(self) -> PerHead | Shared:
        """Whose budget a head's tokens come out of."""
        SharingConfig.of({"share": self.share or "head", "floor": self.floor})  # raises
        return selection_of(self.share, self.floor, self.trained, self.indexers.shape)

    def post_init_from_model(self, model: PreTrainedModel) -> None:
        """Raises UserError when the indexer was trained for a model of other sizes."""
        check_fits(self.indexers.geometry, model)
        fit_masks(model)

    @torch.no_grad()
    def score(
        self, module: nn.Module, hidden_states: Tensor, keys: Tensor, values: Tensor, attentions: Tensor, kwargs: Any
    ) -> Tensor:
        """Importance [B, H, L], infinite for sinks. Layers that share an indexer must be visited in order."""
        batch, kv_heads, length = keys.shape[:3]
        layer = layer_number(module)
        assert layer is not None, "layers with a sliding window are not scored"
        indexer = self.indexers.owned_by(layer)
        if indexer is not None:
            lengths_B = torch.full((batch,), length, device=keys.device)
            pairs = self.indexers.shape.pair_term  # without pairs no queries are needed
            query_BQLd = get_prerope_query_states(module, hidden_states) if pairs else None
            seen = _Seen(hidden_states, keys, values, kwargs.get("position_embeddings", ()))
            read_BLX = READS[indexer.shape.reads].of(seen)
            self._shared_BGL = indexer.to(keys.device)(read_BLX, query_BQLd, lengths_B)
        assert self._shared_BGL is not None, "layers are visited in order"
        scores_BHL = self._shared_BGL.to(keys.device).expand(batch, kv_heads, length).clone()
        scores_BHL[..., : self.n_sink] = float("inf")
        return scores_BHL

    def compress(
        self, module: nn.Module, hidden_states: Tensor, keys: Tensor, values: Tensor, attentions: Tensor, kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As ScorerPress, but by our rule (eviction/ranking.py): ties go to the earlier token, order is kept."""
        if self.compression_ratio == 0 or layer_number(module) is None:
            return keys, values
        selection = self.selection
        if isinstance(selection, Shared):
            check_maskable(module)
        scores_BHL = self.score(module, hidden_states, keys, values, attentions, kwargs)
        if not isinstance(selection, Shared):
            kept_BHK = keep_best(scores_BHL, self.compression_ratio)
            return take(keys, kept_BHK), take(values, kept_BHK)
        scores_BHL = comparable(scores_BHL, self.n_sink)
        for settled, leaves_BHL in self._budget.settle(selection, module, scores_BHL, self.compression_ratio):
            mask(settled, leaves_BHL)
        return keys, values
