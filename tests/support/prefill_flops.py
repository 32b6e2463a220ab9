"""Floating-point operations of a prefill, plain and with eviction before attention.

Shapes in the equation: L tokens, D model width, Q query heads, H KV heads, d head_dim, m MLP width, K kept tokens,
U tokens projected to K and V, A pairs of a query and a kept token that it sees, G score rows, h indexer heads,
i indexer dim, w width of the indexer's token term.
"""

from __future__ import annotations

from indexmem.eviction.indexer import IndexerShape
from indexmem.models.geometry import Geometry


def prefill_flops(
    geometry: Geometry,
    tokens: int,
    kept: int,
    *,
    mlp_width: int = 0,
    indexer: IndexerShape | None = None,
    projected: int | None = None,
    pairs: int | None = None,
) -> int:
    """Multiplications and additions of all layers; norms, softmax, embedding and the final head are left out.

        layer   = 2 L D Q d + 4 U D H d + 2 L Q d D + 4 Q d A + 6 L D m
        indexer = 2 L (Q d G h i + D i + D G h) + (L (L + 1) / 2) G h (2 i + 3) + 2 L w (D + G)
        A       = K (L + 1) / 2        kept tokens spread evenly; exact for K = L, where it is plain prefill

    `projected` is U: at least K, when all heads keep the same tokens (the default), at most min(L, H K). `pairs` is A
    of one head where it is known: it is more if early tokens are kept, which more queries see. `mlp_width` 0 counts
    attention blocks alone. Without `indexer` its scoring is not counted; it runs in one of `share_every` layers.
    """
    width, kv_width = geometry.attention_width, geometry.kv_heads * geometry.head_dim
    rows = kept if projected is None else projected
    assert kept <= rows <= min(tokens, geometry.kv_heads * kept), "U is between K and min(L, H K)"
    pairs_doubled = kept * (tokens + 1) if pairs is None else 2 * pairs
    layer = 2 * tokens * geometry.hidden_size * width * 2  # queries and output
    layer += 4 * rows * geometry.hidden_size * kv_width
    layer += 2 * width * pairs_doubled
    layer += 6 * tokens * geometry.hidden_size * mlp_width
    total = geometry.layers * layer
    if indexer is not None:
        heads = indexer.rows * indexer.heads
        scoring = 2 * tokens * (width * heads * indexer.dim + geometry.hidden_size * (indexer.dim + heads))
        scoring += tokens * (tokens + 1) // 2 * heads * (2 * indexer.dim + 3)
        scoring += 2 * tokens * indexer.token_term * (geometry.hidden_size + indexer.rows)
        total += -(-geometry.layers // indexer.share_every) * scoring
    return total
