"""The latent memory as a kvpress press, around any press that scores, and with the indexer: IndexMem.

Shapes: B batch, H KV heads, L context tokens, K kept tokens, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from kvpress import BasePress, ScorerPress
from kvpress.utils import get_prerope_query_states
from torch import Tensor, nn
from transformers import PreTrainedModel

from indexmem.config.modules import module_name
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import INDEXER
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.kvpress_scores import window_by_age
from indexmem.eviction.modules_source import local_or_downloaded
from indexmem.eviction.press.attached import AttachedMemories
from indexmem.eviction.press.common import check_fits, keep_best, take
from indexmem.eviction.press.indexer_press import IndexerPress
from indexmem.eviction.press.shared_budget import SharedBudget
from indexmem.eviction.press.sliding_masks import fit_masks
from indexmem.eviction.ranking import comparable
from indexmem.eviction.selection import PER_HEAD, Shared
from indexmem.models.attention import layer_number


@dataclass(kw_only=True, eq=False)
class MemoryPress(BasePress):
    """Any ScorerPress plus the latent memory trained for it: what it evicts is written down instead of lost.

    The memory is written during prefill, onto the cache, and read by every later forward pass over that cache. For
    this, hooks are registered on the model when the press is first entered, and stay after it is left; `detach`
    removes them. They change nothing for other caches. A pass over a cache with memory computes attention twice.

    Around an IndexerPress whose heads share a budget, what is evicted stays in the cache, and the hooks ignore it.
    """

    press: ScorerPress
    memories: MemoryStack = field(repr=False)
    n_sink: int = 4  # kept whatever `press` scores, as in training

    def __post_init__(self) -> None:
        """Raises UserError for a press that is more than a scorer: its other half would be lost without notice."""
        if type(self.press).compress not in (ScorerPress.compress, IndexerPress.compress):
            raise UserError(
                f"{type(self.press).__name__} decides more than scores, which a memory around it would ignore; "
                "give MemoryPress a press that only scores, such as SnapKVPress."
            )
        self._attached = AttachedMemories(self.memories, get_prerope_query_states)
        self._budget = SharedBudget()

    @property
    def compression_ratio(self) -> float:
        """Fraction of the context that is evicted: the wrapped press' own."""
        return self.press.compression_ratio

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        self.press.compression_ratio = ratio

    def post_init_from_model(self, model: PreTrainedModel) -> None:
        """Register the hooks. Raises UserError when the memory was trained for a model of other sizes."""
        self.press.post_init_from_model(model)
        check_fits(self.memories.geometry, model)
        self._attached.attach(model)
        fit_masks(model)

    def detach(self) -> None:
        """Remove the hooks from all models; safe to repeat.

        Caches filled by this press then answer without memory, and those of a shared budget with all of their context.
        """
        self._attached.detach()

    @torch.no_grad()
    def compress(
        self, module: nn.Module, hidden_states: Tensor, keys: Tensor, values: Tensor, attentions: Tensor, kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.compression_ratio == 0 or layer_number(module) is None:
            return keys, values
        scores_BHL = self.press.score(module, hidden_states, keys, values, attentions, kwargs)
        scores_BHL = window_by_age(self.press, scores_BHL)
        cache, rotary = kwargs["past_key_values"], kwargs["position_embeddings"]
        selection = self.press.selection if isinstance(self.press, IndexerPress) else PER_HEAD
        if not isinstance(selection, Shared):
            kept_BHK = keep_best(scores_BHL, self.compression_ratio, self.n_sink)
            leaves_BHL = torch.ones_like(scores_BHL, dtype=torch.bool).scatter_(2, kept_BHK, False)
            self._attached.write(module, cache, keys, values, leaves_BHL, rotary)
            return take(keys, kept_BHK), take(values, kept_BHK)
        scores_BHL = comparable(scores_BHL, self.n_sink)
        for settled, leaves_BHL in self._budget.settle(selection, module, scores_BHL, self.compression_ratio):
            held = cache.layers[int(settled.layer_idx)]  # type: ignore[arg-type]
            self._attached.write(settled, cache, held.keys, held.values, leaves_BHL, rotary, stay=True)
        return keys, values


@dataclass(kw_only=True, eq=False)
class IndexMemPress(MemoryPress):
    """IndexMem: the indexer, and the memory trained for its evictions, of one checkpoint."""

    press: IndexerPress

    @classmethod
    def from_pretrained(cls, source: str | Path, *settings: Any, **named: Any) -> Self:
        """As `IndexerPress.from_pretrained`. Raises UserError also where the indexer has no memory."""
        folder = local_or_downloaded(source)
        memories = MemoryStack.load_for(INDEXER, folder).eval().requires_grad_(False)
        press = IndexerPress.from_pretrained(folder, *settings, **named)
        return cls(press=press, memories=memories, n_sink=press.n_sink)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a checkpoint folder with both modules."""
        return save_modules(
            {INDEXER: self.press.indexers, module_name(INDEXER): self.memories}, folder, self.press.trained
        )
