"""How a method ranks a cache that grows: the protocol, and the methods that need keys or recent queries alone.

A scorer serves those rows of one decode batch that share a method. A row's scores depend on that row alone.
Shapes: R rows of the batch, r rows of the scorer, H KV heads, Q query heads, T cached tokens, S observed queries,
n new tokens now, d head_dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.eviction.ranking import newest_above_all
from indexmem.models.attention import LayerTap

NOISE_BLOCK = 1024  # positions of random scores drawn at once


@dataclass(frozen=True)
class CachedTokens:
    """One row's cache in one layer, oldest first. Heads that hold fewer tokens repeat their first one before it."""

    row: int  # among the scorer's rows
    layer: int
    key_HTd: Tensor  # after RoPE
    position_HT: Tensor  # original positions, int64, ascending
    scaling: float  # the backbone's logit scale
    valid_HT: Tensor | None = None  # False where a head repeats; None: nowhere

    def hide(self, values_HT: Tensor, instead: float) -> Tensor:
        """Values with `instead` where a head repeats a token."""
        return values_HT if self.valid_HT is None else values_HT.masked_fill(~self.valid_HT, instead)

    def mean(self, values_HTd: Tensor) -> Tensor:
        """Mean over each head's tokens [H, 1, d]."""
        if self.valid_HT is None:
            return values_HTd.mean(dim=1, keepdim=True)
        valid_HT1 = self.valid_HT[..., None]
        return (values_HTd * valid_HT1).sum(dim=1, keepdim=True) / valid_HT1.sum(dim=1, keepdim=True)

    def query_positions(self, count: int) -> Tensor:
        """Positions [S] of the row's last `count` queries; the newest cached token is the newest query."""
        return self.position_HT[0, -1] + 1 - count + torch.arange(count, device=self.position_HT.device)


class DecodeScorer(ABC):
    """Scores cached tokens; what it remembers of them follows each compression."""

    def observe(self, tap: LayerTap, row_r: Tensor, valid_Rn: Tensor) -> None:  # noqa: B027
        """See a forward pass of the whole batch in one layer; False in `valid_Rn` marks padding."""

    def begin_compression(self) -> None:  # noqa: B027
        """What was observed since the last compression is complete."""

    @abstractmethod
    def score(self, cached: CachedTokens) -> Tensor:
        """Importance [H, T], fp32; higher is kept longer; anything where a head repeats. Layers come in order."""

    def keep(self, row: int, layer: int, index_HK: Tensor, lengths_H: Sequence[int]) -> None:  # noqa: B027
        """The row now holds these of its T tokens: the last `lengths` of each head, before which it repeats one."""

    def end_compression(self) -> None:  # noqa: B027
        """A new interval of queries begins."""

    def select(self, rows: Tensor) -> None:  # noqa: B027
        """Keep only these of its rows, renumbered in their order."""


class KeyScorer(DecodeScorer):
    """Scores from keys and positions alone: nothing to observe."""

    def __init__(self, function: Callable[[CachedTokens], Tensor]) -> None:
        self.function = function

    def score(self, cached: CachedTokens) -> Tensor:
        return self.function(cached)


def key_norm(cached: CachedTokens) -> Tensor:
    """Knorm: -|k|."""
    return -cached.key_HTd.float().norm(dim=-1)


def key_difference(cached: CachedTokens) -> Tensor:
    """KeyDiff: -cos(k, mean of the normalised cached keys)."""
    key_HTd = cached.key_HTd.float()
    anchor_H1d = cached.mean(F.normalize(key_HTd, p=2, dim=-1))
    return -F.cosine_similarity(key_HTd, anchor_H1d, dim=-1)


def recency(cached: CachedTokens, n_sink: int) -> Tensor:
    """StreamingLLM: the position; the first `n_sink` above all."""
    return cached.position_HT.float().masked_fill(cached.position_HT < n_sink, float("inf"))


def noise(cached: CachedTokens, seed: int) -> Tensor:
    """A fixed uniform number for each (layer, head, position): the same at every compression and in every batch."""
    heads = cached.key_HTd.shape[0]
    blocks = []
    for block in range(int(cached.position_HT.max()) // NOISE_BLOCK + 1):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + cached.layer) * 1_000_003 + block)
        blocks.append(torch.rand(heads, NOISE_BLOCK, generator=generator))
    return torch.cat(blocks, dim=1).to(cached.key_HTd.device).gather(1, cached.position_HT)


class WindowAttention(DecodeScorer):
    """Attention of a row's last queries over its cache: SnapKV (arXiv 2404.14469) and TOVA (arXiv 2401.06104).

        score[t] = pool_t mean_s softmax_t(q_s . k_t scaling),  averaged over query heads; window tokens above all,
        the newest first

    Queries count from the question on: those of the compressed context are gone. What a head repeats gets no attention,
    as the zeros that pooling finds before a first token.
    """

    def __init__(self, window: int, kernel: int = 1, *, across_heads: bool = False) -> None:
        """`kernel`: tokens averaged along t; `across_heads`: one score for all KV heads (TOVA)."""
        self.window, self.kernel, self.across_heads = window, kernel, across_heads
        self._query_rQSd: dict[int, Tensor] = {}  # layer -> last queries, after RoPE
        self._valid_rS: dict[int, Tensor] = {}

    def observe(self, tap: LayerTap, row_r: Tensor, valid_Rn: Tensor) -> None:
        query_rQSd, valid_rS = tap.query_BQLd[row_r], valid_Rn[row_r]
        if tap.layer in self._query_rQSd:
            query_rQSd = torch.cat((self._query_rQSd[tap.layer], query_rQSd), dim=2)
            valid_rS = torch.cat((self._valid_rS[tap.layer], valid_rS), dim=1)
        self._query_rQSd[tap.layer] = query_rQSd[:, :, -self.window :]
        self._valid_rS[tap.layer] = valid_rS[:, -self.window :]

    def score(self, cached: CachedTokens) -> Tensor:
        valid_S = self._valid_rS[cached.layer][cached.row]
        query_QSd = self._query_rQSd[cached.layer][cached.row][:, valid_S].float()
        heads, tokens, _ = cached.key_HTd.shape
        position_S = cached.query_positions(query_QSd.shape[1])
        future_HST = cached.position_HT[:, None] > position_S[:, None]
        logits_HgST = torch.einsum("hgsd,htd->hgst", query_QSd.unflatten(0, (heads, -1)), cached.key_HTd.float())
        if cached.valid_HT is not None:
            future_HST = future_HST | ~cached.valid_HT[:, None]
        attention = (logits_HgST * cached.scaling).masked_fill(future_HST[:, None], float("-inf")).softmax(-1)
        in_window_HT = cached.position_HT >= position_S[0]
        mean_HT = attention.mean(dim=(1, 2)).masked_fill(in_window_HT, 0.0)
        if self.across_heads:
            mean_HT = mean_HT.mean(0, keepdim=True).expand(heads, tokens)
        pooled_HT = F.avg_pool1d(mean_HT, self.kernel, stride=1, padding=self.kernel // 2)[:, :tokens]
        # The window may be more than the budget: its newest tokens stay.
        return torch.where(in_window_HT, newest_above_all(position_S[-1] - cached.position_HT), pooled_HT)

    def select(self, rows: Tensor) -> None:
        self._query_rQSd = {layer: query[rows] for layer, query in self._query_rQSd.items()}
        self._valid_rS = {layer: valid[rows] for layer, valid in self._valid_rS.items()}
