"""The learned indexer (paper section 3.1): a small scorer that predicts which tokens will matter.

    imp[t] = pair[t] + token[t]
    pair[t] = max over s >= t of A[s,t]                                the paper's: an MQA over pairs of tokens
      A[s,t] = sum_h alpha[s,h] act(q[s,h] . k[t])
      q_s    = rmsnorm(view(U_q flatten_heads(Q_s), [G, H_i, d_i]))    Q before RoPE
      k_t    = rmsnorm(U_k X_t)                                        one key for all heads
      alpha  = gate X_s / sqrt(H_i d_i)                                signed
    token[t] = W_2 silu(W_1 X_t + b_1) + b_2                           ours: what the token alone says

Either term may be absent. X_t is the layer's input; an indexer without pairs may read the token's K, or K and V, in its
place (eviction/reads.py).
Shapes: B batch, S queries, T keys, X width of what is read of a token (the model's, by default), Q query heads, d
head_dim, G score rows (1 for scope `layer`, KV heads for `kv_head`), H indexer heads per row (0 without pairs), i
indexer dim, w hidden width of the token term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from indexmem.config.modules import IndexerConfig
from indexmem.eviction.context import IndexerKeys
from indexmem.eviction.reads import HIDDEN, READS
from indexmem.eviction.streaming import NEG_INF, causal_max
from indexmem.eviction.trained_layers import TrainedLayers
from indexmem.kernels.dispatch import can_run
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"relu": torch.relu, "softplus": F.softplus, "identity": lambda z: z}
)


INDEXER = "indexer"  # of the module in a checkpoint
NORM_EPS = 1e-6  # given explicitly: torch's default depends on the dtype


@dataclass(frozen=True)
class IndexerShape:
    """Everything that fixes the indexer's parameters, stored in its checkpoint."""

    scope: str
    heads: int  # H_i, per score row
    dim: int  # d_i
    activation: str
    rows: int  # G
    share_every: int = 1  # layers served by one indexer
    pair_term: bool = True
    token_term: int = 0  # w; 0: no such term
    reads: str = HIDDEN  # of each token: a name in READS

    @classmethod
    def of(cls, config: IndexerConfig, geometry: Geometry) -> IndexerShape:
        """Defaults of the paper: H_i = H/4 and d_i = head_dim/8 (at least 1); 0 without pairs."""
        return cls(
            scope=config.scope,
            heads=(config.heads or max(1, geometry.heads // 4)) if config.pair_term else 0,
            dim=(config.dim or max(1, geometry.head_dim // 8)) if config.pair_term else 0,
            activation=config.activation,
            rows=geometry.kv_heads if config.scope == "kv_head" else 1,
            share_every=config.share_every,
            pair_term=config.pair_term,
            token_term=config.token_term,
            reads=config.reads,
        )

    @property
    def numbers_per_key(self) -> int:
        """What is held of a token for each score row, to rank it again later: its key, and its token term's value."""
        return (self.dim if self.pair_term else 0) + (1 if self.token_term else 0)


@dataclass(frozen=True)
class Features:
    """Projected inputs of one layer: all that scoring needs. Without pairs H and i are 0; `token_BGT` may be 0."""

    q_BSGHi: Tensor
    k_BTi: Tensor
    alpha_BSGH: Tensor
    token_BGT: Tensor


class Indexer(nn.Module):
    """One layer's indexer: no biases, RMSNorm without weight."""

    def __init__(self, shape: IndexerShape, input_size: int, attention_width: int) -> None:
        super().__init__()
        self.shape = shape
        width = shape.rows * shape.heads
        if shape.pair_term:
            self.q_proj = nn.Linear(attention_width, width * shape.dim, bias=False)
            self.k_proj = nn.Linear(input_size, shape.dim, bias=False)
            self.gate = nn.Linear(input_size, width, bias=False)
        if shape.token_term:
            self.token = nn.Sequential(
                nn.Linear(input_size, shape.token_term), nn.SiLU(), nn.Linear(shape.token_term, shape.rows)
            )

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def features_of(self, tap: LayerTap) -> Features:
        """What a layer sees, projected. Without pairs its queries are not asked for: turning them back costs time."""
        return self.features(READS[self.shape.reads].of(tap), tap.query_pre_BQLd if self.shape.pair_term else None)

    def features(self, input_BLX: Tensor, query_pre_BQLd: Tensor | None) -> Features:
        """Project what is read of tokens and, for pairs, pre-RoPE queries; computes in the indexer's own dtype."""
        rows, heads, dim = self.shape.rows, self.shape.heads, self.shape.dim
        read = input_BLX.to(self.dtype)
        batch_length = read.shape[:2]
        token_BGT = self.token(read).mT if self.shape.token_term else read.new_zeros(1, 1, 1)
        token_BGT = token_BGT.expand(batch_length[0], rows, batch_length[1])
        if not self.shape.pair_term:
            nothing = read.new_zeros((*batch_length, 0))
            return Features(nothing[:, :, None, None], nothing, nothing[:, :, None], token_BGT)
        assert query_pre_BQLd is not None, "pairs are scored by queries"
        q = self.q_proj(query_pre_BQLd.to(self.dtype).transpose(1, 2).flatten(2)).unflatten(-1, (rows, heads, dim))
        alpha = self.gate(read).unflatten(-1, (rows, heads)) / (heads * dim) ** 0.5
        k = self.k_proj(read)
        return Features(F.rms_norm(q, (dim,), eps=NORM_EPS), F.rms_norm(k, (dim,), eps=NORM_EPS), alpha, token_BGT)

    def keys(self, features: Features) -> IndexerKeys:
        """What is to be held of a context (batch 1) so that later queries can rank it again."""
        return IndexerKeys(features.k_BTi[0], features.token_BGT[0] if self.shape.token_term else None)

    def score_rows(self, features: Features, start: int, stop: int) -> Tensor:
        """A[:, :, start:stop, 0:stop] as [B, G, S, T]; one head's z is alive at a time."""
        act = ACTIVATIONS[self.shape.activation]
        q_BGHSi = features.q_BSGHi[:, start:stop].permute(0, 2, 3, 1, 4)
        alpha_BGHS = features.alpha_BSGH[:, start:stop].permute(0, 2, 3, 1)
        keys_BiT = features.k_BTi[:, None, :stop].transpose(-1, -2)
        scores = act(q_BGHSi[:, :, 0] @ keys_BiT) * alpha_BGHS[:, :, 0, :, None]
        for head in range(1, self.shape.heads):
            scores.addcmul_(act(q_BGHSi[:, :, head] @ keys_BiT), alpha_BGHS[:, :, head, :, None])
        return scores

    def importance(
        self,
        features: Features,
        lengths_B: Tensor,
        block: int | None = None,
        products: torch.dtype | None = None,
    ) -> Tensor:
        """imp [B, G, T]; 0 at padded keys. Differentiable in O(L H_i d_i).

        The pair term's maximum and its argmax come from one streaming pass without autograd; only the winning entries
        A[s*(t), t] are then recomputed with it, which is the whole gradient of a max.

        With `products` (float16, bfloat16) kernels find the winners from q and k rounded to it. Values are recomputed
        from the unrounded ones: a wrong winner is a near-tie, and its score at most twice the rounding error below the
        maximum.
        """
        importance_BGT = features.token_BGT
        if self.shape.pair_term:
            importance_BGT = importance_BGT + self._best_of_pairs(features, lengths_B, block, products)
        valid_B1T = (torch.arange(importance_BGT.shape[-1], device=lengths_B.device) < lengths_B[:, None])[:, None]
        return importance_BGT.masked_fill(~valid_B1T, 0.0)

    def _best_of_pairs(
        self, features: Features, lengths_B: Tensor, block: int | None, products: torch.dtype | None
    ) -> Tensor:
        """max over queries of A [B, G, T]; anything at padded keys."""
        with torch.no_grad():
            best_BGT, winner_BGT = self._maxima(features, lengths_B, block, products)
        if torch.is_grad_enabled() or products:
            return self._winning_scores(features, winner_BGT)
        # The kernel's maximum drops NaN: over no number at all it is -inf, which no real token has.
        return best_BGT.masked_fill(best_BGT == NEG_INF, float("nan"))

    def _maxima(
        self, features: Features, lengths_B: Tensor, block: int | None, products: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        """max over queries and the winning queries, [B, G, T] each: by one kernel on a GPU, else block by block."""
        if block is None and can_run(features.q_BSGHi, features.k_BTi):
            from indexmem.kernels.indexer_max import indexer_max  # needs Triton

            # RMSNorm bounds q and k by sqrt(d_i): far within the range of 16-bit floats.
            q_BSGHi, k_BTi = (x.to(products or x.dtype) for x in (features.q_BSGHi, features.k_BTi))
            return indexer_max(q_BSGHi, k_BTi, features.alpha_BSGH, lengths_B, self.shape.activation)
        rows = lambda start, stop: self.score_rows(features, start, stop)  # noqa: E731
        return causal_max(rows, lengths_B, self.shape.rows, block)

    def _winning_scores(self, features: Features, winner_BGT: Tensor) -> Tensor:
        heads, dim = self.shape.heads, self.shape.dim
        index_BGTH = winner_BGT[..., None].expand(*winner_BGT.shape, heads)
        alpha_BGTH = features.alpha_BSGH.transpose(1, 2).gather(2, index_BGTH)
        q_BGTHi = features.q_BSGHi.transpose(1, 2).gather(2, index_BGTH[..., None].expand(*index_BGTH.shape, dim))
        z_BGTH = ACTIVATIONS[self.shape.activation](torch.einsum("bgthi,bti->bgth", q_BGTHi, features.k_BTi))
        return (alpha_BGTH * z_BGTH).sum(-1)

    def forward(
        self, input_BLX: Tensor, query_pre_BQLd: Tensor | None, lengths_B: Tensor, products: torch.dtype | None = None
    ) -> Tensor:
        return self.importance(self.features(input_BLX, query_pre_BQLd), lengths_B, products=products)


class IndexerStack(TrainedLayers[IndexerShape]):
    """The indexers of a backbone: one for each layer, or one at the first of every `share_every` layers."""

    SHAPE, NAME = IndexerShape, INDEXER

    def __init__(self, shape: IndexerShape, geometry: Geometry) -> None:
        owners = range(0, geometry.layers, shape.share_every)
        width = READS[shape.reads].width(geometry)
        indexers = (Indexer(shape, width, geometry.attention_width) for _ in owners)
        super().__init__(shape, geometry, indexers)

    def owned_by(self, layer: int) -> Indexer | None:
        """The indexer that runs in this layer; None where the scores of the layer before are used again."""
        number, offset = divmod(layer, self.shape.share_every)
        return None if offset else self[number]  # type: ignore[return-value]
