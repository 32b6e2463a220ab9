"""What an eviction method is. A grid builds each anew from its config: nothing is shared, nothing is left on a model.

Shapes: B batch, H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from indexmem.eviction.context import ContextCache, RowCache
from indexmem.eviction.methods.decode_scorer import DecodeScorer
from indexmem.eviction.policy import keep, rank
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry


@dataclass(frozen=True)
class MethodContext:
    """What a factory may need besides the method's own parameters."""

    geometry: Geometry
    device: str = "cpu"
    checkpoint: str | None = None  # folder of the trained modules
    extra_tokens: int = 0  # what methods without memory keep on top of their budget


class EvictionMethod(ABC):
    """Ranks the tokens of a context layer by layer, then says what a cell keeps of it."""

    checkpoint = ""  # content hash of learned weights; part of a cell's identity
    min_context = 1  # shortest context that it can score, in tokens
    extra_tokens = 0  # kept on top of the budget, to cost as many bytes as a method with a memory
    cross_layer = False  # True: `combine` wants the scores of all layers before anything is ranked

    @abstractmethod
    def score(self, tap: LayerTap) -> Tensor:
        """Importance [B, H, L] of each context token in this layer; higher is kept longer."""

    def combine(self, scores_HL: Sequence[Tensor]) -> list[Tensor]:
        """All layers' scores -> the scores to rank by. Called once per context when `cross_layer`."""
        return list(scores_HL)

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """What `compress` wants to know of a layer's scores, for any budget: positions, best first, int32 [H, L]."""
        return rank(scores_HL, sinks)

    def kept(self, tokens: int, target: float, layer: int, layers: int) -> int:
        """Tokens kept per KV head in this layer when a budget allows `target` tokens in the mean over layers."""
        return max(1, min(tokens, int(target)))

    def indexer_bytes(self, kept_HK: Sequence[Tensor], element_size: int) -> int:
        """Bytes of indexer keys held for the kept tokens, for compression during decoding."""
        return 0

    def indexer_keys(self) -> Mapping[int, Tensor] | None:
        """Indexer keys [L, i] of the context scored last, by layer; None for a method without an indexer."""
        return None

    def decode_scorer(self, rows: Sequence[RowCache]) -> DecodeScorer | None:
        """What ranks these rows' growing caches while decoding; None if the method cannot do that."""
        return None

    def compress(self, context: ContextCache, rankings_HL: Sequence[Tensor], target: float) -> RowCache:
        """What a cell of this method keeps of a context: the best-ranked tokens of each layer.

        `target` is the budget in tokens per KV head, before rounding: L (1 - ratio), or a number of tokens.
        """
        kept_HK = [
            keep(ranking, self.kept(context.tokens, target, layer, context.layers) + self.extra_tokens)
            for layer, ranking in enumerate(rankings_HL)
        ]
        indexer_bytes = self.indexer_bytes(kept_HK, context.element_size)
        return RowCache(
            context.keys_HLd,
            context.values_HLd,
            kept_HK,
            indexer_bytes=indexer_bytes,
            indexer_keys_Li=self.indexer_keys(),
        )
