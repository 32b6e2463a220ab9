"""What an eviction method is. A grid builds each anew from its config: nothing is shared, nothing is left on a model.

Shapes: B batch, H KV heads, L context tokens, K kept tokens, N layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from indexmem.config.modules import Across
from indexmem.config.schema import Experiment
from indexmem.eviction.context import ContextCache, IndexerKeys, RowCache, lengths_of
from indexmem.eviction.methods.decode_scorer import DecodeScorer
from indexmem.eviction.policy import Kept, keep
from indexmem.eviction.sharing import EVEN, Sharing
from indexmem.models.attention import LayerTap
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry
from indexmem.models.prompt import PromptFormat


@dataclass(frozen=True)
class MethodContext:
    """What a factory may need besides the method's own parameters."""

    geometry: Geometry
    device: str = "cpu"
    checkpoint: str | None = None  # folder of the trained modules
    # Of the spec's own indexer: which heads share a budget (None: as trained), and what each keeps in any case.
    share: Across | None = None
    floor: float = 0.0
    layer_by_layer: bool = False  # a layer's tokens are chosen before later layers are computed

    @classmethod
    def of(cls, spec: Experiment, geometry: Geometry, checkpoint: str | None, device: str = "cpu") -> MethodContext:
        """What a spec says."""
        return cls(
            geometry,
            device,
            checkpoint,
            spec.indexer.share,
            spec.indexer.floor,
            spec.eviction.when == "before_prefill",
        )


class EvictionMethod(ABC):
    """Ranks the tokens of a context layer by layer, then says what a cell keeps of it."""

    checkpoint = ""  # content hash of learned weights; part of a cell's identity
    min_context = 1  # shortest context that it can score, in tokens
    slack = 0.0  # tokens per head, in the mean, by which its own rounding may miss a budget
    state_bytes = 0  # held for one context besides K, V and indexer keys, whatever is kept
    cross_layer = False  # True: `combine` wants the scores of all layers before anything is ranked
    own_pass = False  # True: `score_context` runs the backbone again instead of scoring the shared prefill's taps
    # What its scores depend on besides K and V: the queries of so many last tokens; None: all tokens', or more.
    # With a number, `score` may get several layers as a batch, with these queries only and no hidden states.
    last_queries: int | None = None
    kinds_of_scores = 1  # more than one: `score` gives [B, kinds, H, L], all that the ranking depends on
    per_head = True  # False: a layer's heads all get the same scores
    sharing: Sharing = EVEN  # whose budget a head's tokens come out of
    layers_alike = 1  # so many layers that follow one another get the same scores

    @abstractmethod
    def score(self, tap: LayerTap) -> Tensor:
        """Importance [B, H, L] of each context token in this layer; higher is kept longer.

        A method with a `rank` of its own may return several `kinds_of_scores`, [B, kinds, H, L].
        """

    def score_context(
        self, backbone: Backbone, context: ContextCache, context_ids: Sequence[int], prompt: PromptFormat
    ) -> Sequence[Tensor]:
        """Scores [H, L] of all layers by passes of the method's own over a prefilled context. Asked if `own_pass`.

        `context_ids` begin with the tokens of `prompt.prefix`.
        """
        raise NotImplementedError(f"{type(self).__name__} scores the shared prefill")

    def combine(self, scores_HL: Sequence[Tensor]) -> list[Tensor]:
        """All layers' scores -> the scores to rank by. Called once per context when `cross_layer`."""
        return list(scores_HL)

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """What `choose_layer` wants to know of a layer's scores, for any budget: positions, best first [H, L], or what
        its `sharing` asks for.

        One tensor, held until all cells of the context are compressed. Layers may come together, in a first dimension.
        Scores hold no NaN: who asks has looked.
        """
        return self.sharing.rank(scores_HL, sinks)

    def kept(self, tokens: int, target: float, layer: int, layers: int) -> int:
        """Tokens kept per KV head in this layer when a budget allows `target` tokens in the mean over layers."""
        return max(1, min(tokens, int(target)))

    def indexer_bytes(self, lengths: Sequence[Sequence[int]], element_size: int) -> int:
        """Bytes of indexer keys for compression during decoding; `lengths`: kept tokens of each head, by layer."""
        return 0

    def indexer_keys(self) -> Mapping[int, IndexerKeys] | None:
        """Indexer keys of the context scored last, by layer; None for a method without an indexer."""
        return None

    def decode_scorer(self, rows: Sequence[RowCache]) -> DecodeScorer | None:
        """What ranks these rows' growing caches while decoding; None if the method cannot do that."""
        return None

    def choose_layer(self, ranking: Tensor, tokens: int, target: float, layer: int, layers: int) -> Kept:
        """What one layer keeps of its `tokens` tokens, from what `rank` made of its scores."""
        if not self.sharing.is_even:
            return self.sharing.choose_layer(ranking, tokens, target)
        return Kept(keep(ranking, self.kept(tokens, target, layer, layers)))

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        """What each layer keeps of a context."""
        if not self.sharing.is_even:
            return self.sharing.choose(rankings, tokens, target)
        layers = len(rankings)
        counts = {self.kept(tokens, target, layer, layers) for layer in range(layers)}
        if len(counts) == 1 and type(self).choose_layer is EvictionMethod.choose_layer:  # all layers by one sort
            (count,) = counts
            best_NHK = torch.stack([ranking[:, :count] for ranking in rankings])
            return [Kept(positions_HK) for positions_HK in keep(best_NHK, count)]
        return [self.choose_layer(ranking, tokens, target, layer, layers) for layer, ranking in enumerate(rankings)]

    def compress(self, context: ContextCache, rankings: Sequence[Tensor], target: float) -> RowCache:
        """What a cell of this method keeps of a context.

        `target` is the budget in tokens per KV head, before rounding: L (1 - ratio), or a number of tokens.
        """
        kept = self.choose(rankings, context.tokens, target)
        kept_HK = [positions for positions, _ in kept]
        counts_H = [counts for _, counts in kept if counts is not None]
        assert len(counts_H) in (0, len(kept)), "heads keep different numbers in all layers or in none"
        return RowCache(
            context.keys_HLd,
            context.values_HLd,
            kept_HK,
            counts_H=counts_H or None,
            indexer_bytes=self.indexer_bytes(lengths_of(kept_HK, counts_H or None), context.element_size),
            indexer_keys=self.indexer_keys(),
            windows=context.windows,
        )
