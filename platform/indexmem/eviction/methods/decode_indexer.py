"""The indexer while decoding: the queries since the last compression score a key cache that grows beside K and V.

    A[s,t] = sum_h alpha[s,h] act(q[s,h] . k[t]),  pos(t) <= pos(s);   imp[t] = max over observed s of A[s,t] + token[t]

Either term may be absent. token[t] never changes: it is held as one more number of the token's key.
Shapes: R rows of the batch, r rows of the scorer, G score rows (1, or KV heads), H KV heads, h indexer heads per score
row, i indexer dim, m numbers held of a token (i and its token term), S observed queries, T cached tokens, n new ones,
K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

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


@dataclass(frozen=True)
class _Held:
    """What is held of one row's cached tokens in one layer, as `CachedTokens` has them."""

    numbers_GTm: Tensor
    lengths_G: Sequence[int]

    def grown(self, numbers_Gnm: Tensor) -> _Held:
        """With new tokens behind the others."""
        numbers_GTm = torch.cat((self.numbers_GTm, numbers_Gnm), dim=1)
        return _Held(numbers_GTm, [length + numbers_Gnm.shape[1] for length in self.lengths_G])

    def kept(self, index_HK: Tensor, lengths_H: Sequence[int]) -> _Held:
        rows, _, numbers = self.numbers_GTm.shape
        index_GK1 = index_HK[:rows, :, None]  # with one score row for all heads, all keep the same tokens
        return _Held(self.numbers_GTm.gather(1, index_GK1.expand(-1, -1, numbers)), lengths_H[:rows])

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens, without what heads repeat."""
        return sum(self.lengths_G) * self.numbers_GTm.shape[2] * self.numbers_GTm.element_size()


class IndexerDecodeScorer(DecodeScorer):
    """Indexer keys are held per score row in the dtype of K and V: heads that keep different tokens need their own."""

    def __init__(self, indexers: IndexerStack, rows: Sequence[RowCache]) -> None:
        self.indexers = indexers
        self._owners = range(0, indexers.geometry.layers, indexers.shape.share_every)
        self._held = {layer: [self._of_prompt(row, layer) for row in rows] for layer in self._owners}
        self._observed: dict[int, list[tuple[Features, Tensor]]] = {layer: [] for layer in self._owners}
        self._queries: dict[int, list[_Queries]] = {}
        self._shared_GT: dict[int, Tensor] = {}  # row -> scores that the next layers of a sharing group use again

    def observe(self, tap: LayerTap, row_r: Tensor, valid_Rn: Tensor) -> None:
        indexer = self.indexers.owned_by(tap.layer)
        if indexer is not None:
            features = indexer.features_of(tap.rows(row_r, tap.hidden_BLD.shape[1]))
            self._observed[tap.layer].append((features, valid_Rn[row_r]))

    def begin_compression(self) -> None:
        for layer, observed in self._observed.items():
            q = torch.cat([features.q_BSGHi for features, _ in observed], dim=1)
            alpha = torch.cat([features.alpha_BSGH for features, _ in observed], dim=1)
            k = torch.cat([features.k_BTi for features, _ in observed], dim=1)
            token = torch.cat([features.token_BGT for features, _ in observed], dim=2)
            valid_rS = torch.cat([valid for _, valid in observed], dim=1)
            held = self._held[layer]
            self._queries[layer] = []
            for row, valid_S in enumerate(valid_rS):
                self._queries[layer].append(_Queries(q[row, valid_S], alpha[row, valid_S]))
                new_Gni = k[row, valid_S].to(held[row].numbers_GTm.dtype).expand(token.shape[1], -1, -1)
                held[row] = held[row].grown(self._numbers(new_Gni, token[row][:, valid_S]))

    def score(self, cached: CachedTokens) -> Tensor:
        if cached.layer in self._queries:
            self._shared_GT[cached.row] = self._importance(cached)
        return self._shared_GT[cached.row].expand(cached.position_HT.shape)

    def keep(self, row: int, layer: int, index_HK: Tensor, lengths_H: Sequence[int]) -> None:
        if layer in self._held:
            self._held[layer][row] = self._held[layer][row].kept(index_HK, lengths_H)

    def end_compression(self) -> None:
        self._observed = {layer: [] for layer in self._owners}
        self._queries.clear()
        self._shared_GT.clear()

    def select(self, rows: Tensor) -> None:
        numbers = rows.tolist()
        self._held = {layer: [held[row] for row in numbers] for layer, held in self._held.items()}
        self._observed = {
            layer: [(_select(features, rows), valid[rows]) for features, valid in observed]
            for layer, observed in self._observed.items()
        }

    @property
    def key_bytes(self) -> int:
        """Bytes of what is held of cached tokens: indexer keys, and their token terms."""
        return sum(held.nbytes for layer in self._held.values() for held in layer)

    def _of_prompt(self, row: RowCache, layer: int) -> _Held:
        """What is held of the context's kept tokens."""
        assert row.indexer_keys is not None, "the indexer keeps its keys at prefill"
        rows = self.indexers.shape.rows
        key_Li, token_GL = row.indexer_keys[layer]
        kept_GK = row.oldest_first(layer)[:rows]
        key_GKi = key_Li.to(row.keys_HLd[0].dtype)[kept_GK]
        token_GK = None if token_GL is None else token_GL.gather(1, kept_GK)
        return _Held(self._numbers(key_GKi, token_GK), row.lengths(layer)[:rows])

    def _numbers(self, key_GTi: Tensor, token_GT: Tensor | None) -> Tensor:
        """What is held of tokens, [G, T, m]."""
        if not self.indexers.shape.token_term:
            return key_GTi
        assert token_GT is not None, "prefill keeps what each token says alone"
        return torch.cat((key_GTi, token_GT[..., None].to(key_GTi.dtype)), dim=-1)

    def _importance(self, cached: CachedTokens) -> Tensor:
        shape = self.indexers.shape
        numbers_GTm = self._held[cached.layer][cached.row].numbers_GTm
        if not shape.pair_term:
            return numbers_GTm[..., -1].float()
        best_GT = self._best_of_pairs(cached, numbers_GTm[..., : shape.dim])
        return best_GT + numbers_GTm[..., -1] if shape.token_term else best_GT

    def _best_of_pairs(self, cached: CachedTokens, keys_GTi: Tensor) -> Tensor:
        """The maximum over observed queries of A, [G, T]."""
        queries = self._queries[cached.layer][cached.row]
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


def _select(features: Features, rows: Tensor) -> Features:
    return Features(*(getattr(features, field.name)[rows] for field in fields(features)))
