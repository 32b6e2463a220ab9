"""Methods without parameters to learn and without a peer's code: the full cache, recency, noise.

Shapes: B batch, H KV heads, L context tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from indexmem.eviction.context import RowCache
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.decode_scorer import KeyScorer, noise, recency
from indexmem.models.attention import LayerTap


class FullCache(EvictionMethod):
    """Keeps everything: the reference that every ratio is compared with."""

    last_queries = 0

    def score(self, tap: LayerTap) -> Tensor:
        return tap.key_BHLd.new_zeros(tap.key_BHLd.shape[:3])


class StreamingLLM(EvictionMethod):
    """First `n_sink` and most recent tokens (arXiv 2309.17453), positions kept as they were."""

    last_queries = 0
    per_head = False

    def __init__(self, n_sink: int = 4) -> None:
        self.n_sink = n_sink

    def score(self, tap: LayerTap) -> Tensor:
        length = tap.key_BHLd.shape[2]
        recency_L = torch.arange(length, dtype=torch.float32, device=tap.key_BHLd.device)
        recency_L[: self.n_sink] = length
        return recency_L.expand(tap.key_BHLd.shape[:3])

    def decode_scorer(self, rows: Sequence[RowCache]) -> KeyScorer:
        return KeyScorer(partial(recency, n_sink=self.n_sink))


class Random(EvictionMethod):
    """Uniform noise: the floor. Seeded by (seed, layer, length), so a cell always keeps the same tokens."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def score(self, tap: LayerTap) -> Tensor:
        shape = tap.key_BHLd.shape[:3]
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + tap.layer) * 1_000_003 + shape[2])
        return torch.rand(shape, generator=generator).to(tap.key_BHLd.device)

    def decode_scorer(self, rows: Sequence[RowCache]) -> KeyScorer:
        return KeyScorer(partial(noise, seed=self.seed))
