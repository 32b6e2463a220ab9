"""What an eviction method is. A grid builds each anew from its config: nothing is shared, nothing is left on a model.

Shapes: B batch, H KV heads, L context tokens, K kept tokens, N layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from indexmem.config.modules import Across
from indexmem.config.schema import Experiment
from indexmem.eviction.context import ContextCache, IndexerKeys, RowCache
from indexmem.eviction.kept import everything, lengths_of
from indexmem.eviction.methods.decode_scorer import DecodeScorer
from indexmem.eviction.selection import PER_HEAD, PerHead, Selection, Shared
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
    granularity: Across = "head"  # which heads hold one set of tokens
    block: int = 1  # tokens that stay or leave together

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
            spec.eviction.granularity,
            spec.eviction.block,
        )

    @property
    def of_scores(self) -> MethodContext:
        """For a method whose scores alone are asked for: heads share nothing, and keep single tokens."""
        return replace(self, share="head", granularity="head", block=1)


class EvictionMethod(ABC):
    """Scores the tokens of a context, layer by layer. That is all that a method must say.

    What it may say besides, each with a default:

    - about its scores: `last_queries`, `min_context`, `per_head`, `layers_alike`; `combine` the scores of all layers;
      `score_context` by a pass of its own;
    - how its budget is spent on heads and layers: `selection` (eviction/selection.py);
    - what it holds besides tokens: `state_bytes`, `indexer_bytes`, `indexer_keys`, or another `compress` altogether;
    - how it ranks a cache that grows: `decode_scorer`; which weights it has: `checkpoint`.

    What is done for it: budgets in ratios, tokens or bytes become tokens per head (eviction/footprint.py), the first
    tokens always stay, budgets are rounded, the best tokens are chosen and packed, and what was kept is checked.
    """

    checkpoint = ""  # content hash of learned weights; part of a cell's identity
    code = ""  # hash of its source where that is not ours, set by the registry; part of a cell's identity
    min_context = 1  # shortest context that it can score, in tokens
    # What its scores depend on besides K and V: the queries of so many last tokens; None: all tokens', or more.
    # With a number, `score` may get several layers as a batch, with these queries only and no hidden states.
    last_queries: int | None = None
    per_head = True  # False: a layer's heads all get the same scores
    layers_alike = 1  # so many layers that follow one another get the same scores
    cross_layer = False  # True: `combine` wants the scores of all layers before anything is ranked
    own_pass = False  # True: `score_context` runs the backbone again instead of scoring the shared prefill's taps
    selection: Selection = PER_HEAD  # from scores and a budget to what each head keeps
    state_bytes = 0  # held for one context besides K, V and indexer keys, whatever is kept

    @property
    def decides(self) -> bool:
        """Whether the method says by itself how many tokens a head keeps, or what of them."""
        return type(self.selection) not in (PerHead, Shared) or type(self).compress is not EvictionMethod.compress

    @abstractmethod
    def score(self, tap: LayerTap) -> Tensor:
        """Importance [B, H, L] of each context token in this layer; higher is kept longer.

        A method with a selection of its own may return what that ranks by, such as two scores [B, 2, H, L].
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

    def indexer_bytes(self, lengths: Sequence[Sequence[int]], element_size: int) -> int:
        """Bytes of indexer keys for compression during decoding; `lengths`: kept tokens of each head, by layer."""
        return 0

    def indexer_keys(self) -> Mapping[int, IndexerKeys] | None:
        """Indexer keys of the context scored last, by layer; None for a method without an indexer."""
        return None

    def decode_scorer(self, rows: Sequence[RowCache]) -> DecodeScorer | None:
        """What ranks these rows' growing caches while decoding; None if the method cannot do that."""
        return None

    def compress(self, context: ContextCache, rankings: Sequence[Tensor] | None, target: float) -> RowCache:
        """What a cell of this method keeps of a context.

        `rankings`: what `selection.rank` made of each layer's scores; None: nothing is to leave. `target`: the budget
        in tokens per KV head, before rounding: L (1 - ratio), or a number of tokens.
        """
        if rankings is None:
            keys_HLd = context.keys_HLd[0]
            kept = [everything(keys_HLd.shape[0], context.tokens, keys_HLd.device)] * context.layers
        else:
            kept = self.selection.choose(rankings, context.tokens, target)
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
