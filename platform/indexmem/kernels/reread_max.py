"""The maximum over a chunk's second reading, in O(L) memory: what of a text attention needs to repeat it.

    target[t] = max over s in the second reading of t's chunk of reduce over heads h of  scale q[h,s] . k[t] - lse[h,s]

`reduce` is the maximum or the mean over the query heads of a score row; unnormalised, the logits themselves are pooled.
All queries come after all keys, so no product is masked. A program owns a block of a chunk's keys and one part of the
chunk's queries: a part is some of their tiles, as many as any other's, give or take one. Where chunks and heads make
enough programs, there is one part. What a chunk lacks of the longest leaves programs with nothing to do.

Shapes: D documents of up to L tokens, R chunks with up to W tokens read again, P parts, Q query heads, H KV heads, G
score rows, d head_dim; S queries, T keys of a tile.
"""

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.logits import load_keys
from indexmem.kernels.pooled import join_pooled, lanes_of, pooled_chunk, pooled_constants, pooling, walk


class SecondReading(Protocol):
    """What is needed of one, on one device; queries beyond a chunk's own are not read."""

    @property
    def query_RQWd(self) -> Tensor: ...
    @property
    def lse_RQW(self) -> Tensor:
        """Natural log-sum-exp of all scaled logits of each query, fp32."""

    @property
    def spans_R4(self) -> Tensor:
        """int32: the chunk's document, where it starts and stops there, and the number of its queries."""


@pooling(("part_class", "HEADS", "SPAN", "SPANS"))
@triton.jit(do_not_specialize=("tokens", "width", "documents", "parts", "part_class"))
def _part_maxima(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, k_ptr, lse_ptr, span_ptr, best_ptr,
    scale, tokens, width, documents, parts, part_class,
    q_row, q_head, q_token, q_dim, k_document, k_head, k_token, k_dim,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
    MEAN: tl.constexpr, NORMALISED: tl.constexpr, HELD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row, part = (tl.program_id(1) // parts).to(tl.int64), tl.program_id(1) % parts
    lane = tl.program_id(2).to(tl.int64)
    span_ptr += 4 * row
    document, stop = tl.load(span_ptr).to(tl.int64), tl.load(span_ptr + 2)
    first = tl.load(span_ptr + 1) + tl.program_id(0) * KEYS
    key_T = first + tl.arange(0, KEYS)
    present_T = key_T < stop
    queries = tl.where(first < stop, tl.load(span_ptr + 3), 0)
    tiles = tl.cdiv(queries, QUERIES)
    begin, end = part * tiles // parts * QUERIES, tl.minimum((part + 1) * tiles // parts * QUERIES, queries)
    q_ptr += row * q_row
    k_ptr += document * k_document
    lse_ptr += row * tl.num_programs(2) * HEADS * width
    first_head = lane * HEADS
    k_dT = load_keys(k_ptr + first_head // GROUP * k_head, key_T, present_T, tl.arange(0, SPAN), k_token, k_dim, DIM)
    best_ST = tl.full((QUERIES, KEYS), float("-inf"), tl.float32)
    best_ST = walk(
        best_ST, begin, end, queries - 1, q_ptr, k_ptr, lse_ptr, scale, first_head, key_T, present_T, k_dT, width,
        q_head, q_token, q_dim, k_head, k_token, k_dim, HEADS, GROUP, DIM, SPAN, SPANS, MEAN, NORMALISED, HELD, False,
        QUERIES, KEYS,
    )  # fmt: skip
    out_T = ((part * documents + document) * tl.num_programs(2) + lane) * tokens + key_T
    tl.store(best_ptr + out_T, tl.max(best_ST, axis=0), mask=present_T)


def reread_max(
    again: SecondReading, key_BHLd: Tensor, *, rows: int, scale: float, mean: bool, normalised: bool = True
) -> Tensor:
    """Target [B, rows, L] (fp32; -inf at keys of no chunk), B documents; `rows` is 1 or H, any strides, no host waits.

    A document's chunks share no key. Products of 16-bit inputs are exact, those of fp32 about as exact as fp32; sums
    are fp32.
    """
    chunks, _, width, _ = again.query_RQWd.shape
    documents, kv_heads, tokens, _ = key_BHLd.shape
    lanes = lanes_of(rows, kv_heads, mean)
    part = pooled_chunk(chunks * lanes * width**2)
    parts = max(1, width // part)
    best_PBGT = torch.full((parts, documents, lanes, tokens), float("-inf"), device=key_BHLd.device)
    # No chunk has more keys than queries.
    _part_maxima[lambda meta: (triton.cdiv(width, meta["KEYS"]), chunks * parts, lanes)](
        again.query_RQWd,
        key_BHLd,
        again.lse_RQW.contiguous(),
        again.spans_R4,
        best_PBGT,
        scale,
        tokens,
        width,
        documents,
        parts,
        part,
        *again.query_RQWd.stride(),
        *key_BHLd.stride(),
        **pooled_constants(again.query_RQWd, key_BHLd, lanes, mean, normalised),
    )
    return join_pooled(best_PBGT, rows)
