"""The indexer while decoding: the queries since the last compression score a key cache that grows beside K and V.

    A[s,t] = sum_h alpha[s,h] act(q[s,h] . k[t]),  pos(t) <= pos(s);   imp[t] = max over observed s of A[s,t]

Shapes: R rows of the batch, r rows of the scorer, G score rows (1, or KV heads), H KV heads, h indexer heads per score
row, i indexer dim, S observed queries, T cached tokens, K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from indexmem.eviction.context import RowCache
from indexmem.eviction.indexer import ACTIVATIONS, Features, IndexerStack
from indexmem.eviction.methods.decode_scorer import CachedTokens, DecodeScorer
from indexmem.models.attention import LayerTap


@dataclass(frozen=True)
class _Queries:
    """One row's queries since the last compression, in one layer."""

    q_SGhi: Tensor
    alpha_SGh: Tensor


class IndexerDecodeScorer(DecodeScorer):
    """Indexer keys are held per score row in the dtype of K and V: heads that keep different tokens need their own."""

    def __init__(self, indexers: IndexerStack, rows: Sequence[RowCache]) -> None:
        self.indexers = indexers
        self._owners = range(0, indexers.geometry.layers, indexers.shape.share_every)
        self._keys_GTi = {layer: [self._prompt_keys(row, layer) for row in rows] for layer in self._owners}
        self._observed: dict[int, list[tuple[Features, Tensor]]] = {layer: [] for layer in self._owners}
        self._queries: dict[int, list[_Queries]] = {}
        self._shared_GT: dict[int, Tensor] = {}  # row -> scores that the next layers of a sharing group use again

    def observe(self, tap: LayerTap, row_r: Tensor, valid_Rn: Tensor) -> None:
        indexer = self.indexers.owned_by(tap.layer)
        if indexer is not None:
            features = indexer.features(tap.hidden_BLD[row_r], tap.query_pre_BQLd[row_r])
            self._observed[tap.layer].append((features, valid_Rn[row_r]))

    def begin_compression(self) -> None:
        for layer, observed in self._observed.items():
            q = torch.cat([features.q_BSGHi for features, _ in observed], dim=1)
            alpha = torch.cat([features.alpha_BSGH for features, _ in observed], dim=1)
            k = torch.cat([features.k_BTi for features, _ in observed], dim=1)
            valid_rS = torch.cat([valid for _, valid in observed], dim=1)
            keys = self._keys_GTi[layer]
            self._queries[layer] = []
            for row, valid_S in enumerate(valid_rS):
                self._queries[layer].append(_Queries(q[row, valid_S], alpha[row, valid_S]))
                new_GSi = k[row, valid_S].to(keys[row].dtype).expand(keys[row].shape[0], -1, -1)
                keys[row] = torch.cat((keys[row], new_GSi), dim=1)

    def score(self, cached: CachedTokens) -> Tensor:
        if cached.layer in self._queries:
            self._shared_GT[cached.row] = self._importance(cached)
        return self._shared_GT[cached.row].expand(cached.position_HT.shape)

    def keep(self, row: int, layer: int, index_HK: Tensor) -> None:
        if layer in self._keys_GTi:
            keys_GTi = self._keys_GTi[layer][row]
            index_GK = index_HK[: keys_GTi.shape[0]]  # with one score row for all heads, all keep the same tokens
            self._keys_GTi[layer][row] = keys_GTi.gather(1, index_GK[..., None].expand(-1, -1, keys_GTi.shape[-1]))

    def end_compression(self) -> None:
        self._observed = {layer: [] for layer in self._owners}
        self._queries.clear()
        self._shared_GT.clear()

    def select(self, rows: Tensor) -> None:
        numbers = rows.tolist()
        self._keys_GTi = {layer: [keys[row] for row in numbers] for layer, keys in self._keys_GTi.items()}
        self._observed = {
            layer: [
                (Features(features.q_BSGHi[rows], features.k_BTi[rows], features.alpha_BSGH[rows]), valid[rows])
                for features, valid in observed
            ]
            for layer, observed in self._observed.items()
        }

    @property
    def key_bytes(self) -> int:
        """Bytes of the indexer keys held for cached tokens."""
        return sum(keys.nbytes for layer in self._keys_GTi.values() for keys in layer)

    def _prompt_keys(self, row: RowCache, layer: int) -> Tensor:
        """[G, K, i] of the context's kept tokens."""
        assert row.indexer_keys_Li is not None, "the indexer keeps its keys at prefill"
        keys_Li = row.indexer_keys_Li[layer].to(row.keys_HLd[0].dtype)
        return keys_Li[row.kept_HK[layer][: self.indexers.shape.rows]]

    def _importance(self, cached: CachedTokens) -> Tensor:
        queries, keys_GTi = self._queries[cached.layer][cached.row], self._keys_GTi[cached.layer][cached.row]
        act = ACTIVATIONS[self.indexers.shape.activation]
        q_hGSi, alpha_hGS1 = queries.q_SGhi.permute(2, 1, 0, 3), queries.alpha_SGh.permute(2, 1, 0)[..., None]
        keys_GiT = keys_GTi.to(q_hGSi.dtype).mT
        scores_GST = sum(
            (alpha_GS1 * act(q_GSi @ keys_GiT) for q_GSi, alpha_GS1 in zip(q_hGSi, alpha_hGS1)),
            start=q_hGSi.new_zeros(()),
        )
        position_S = cached.query_positions(queries.q_SGhi.shape[0])
        future_GST = cached.position_HT[: keys_GTi.shape[0], None] > position_S[:, None]
        return scores_GST.masked_fill(future_GST, float("-inf")).amax(dim=1)
