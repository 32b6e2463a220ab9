"""Methods without parameters to learn and without a peer's code: the full cache, recency, noise, attention received.

Shapes: B batch, H KV heads, g query heads per KV head, L context tokens, S queries of a block, d head_dim.
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

BLOCK_LOGITS = 2**25  # logits held at once: 128 MiB in fp32


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


class ObservedAttention(EvictionMethod):
    """Attention that a token receives from the context's queries (related to H2O, arXiv 2306.14048).

        score[t] = mean_g sum_s softmax_t(q_s . k_t scaling) / (L - t),   pos(t) <= pos(s)

    Divided by the L - t queries that see the token, so that early ones have no advantage.
    """

    def score(self, tap: LayerTap) -> Tensor:
        batch, heads, length, _ = tap.key_BHLd.shape
        query_BHgLd = tap.query_BQLd.unflatten(1, (heads, -1))
        group = query_BHgLd.shape[2]
        block = max(1, BLOCK_LOGITS // (batch * heads * group * length))
        position_L = torch.arange(length, device=tap.key_BHLd.device)
        received_BHL = tap.key_BHLd.new_zeros((batch, heads, length), dtype=torch.float32)
        for start in range(0, length, block):
            stop = min(start + block, length)
            folded_BHsd = query_BHgLd[:, :, :, start:stop].flatten(2, 3)
            logits_BHsT = (folded_BHsd @ tap.key_BHLd[:, :, :stop].transpose(-1, -2)).float() * tap.scaling
            future_ST = position_L[:stop] > position_L[start:stop, None]
            attention = logits_BHsT.masked_fill_(future_ST.repeat(group, 1), float("-inf")).softmax(dim=-1)
            received_BHL[:, :, :stop] += attention.sum(dim=2)
        return received_BHL / group / (length - position_L)
