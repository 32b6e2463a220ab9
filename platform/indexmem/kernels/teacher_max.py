"""The teacher's maximum over queries in O(L) memory: attention logits, or log-probabilities, of all heads.

    lse[h,s]  = log sum over t <= s of exp(scale q[h,s] . k[t])                               (`row_lse`)
    target[t] = max over t <= s < length of reduce over heads h of  scale q[h,s] . k[t] - lse[h,s]

`reduce` is the maximum or the mean over the query heads of a score row; without lse the logits themselves are pooled.
A program owns a block of keys and one chunk of the queries (as in `indexer_max`) and walks over pairs of a query tile
and a head. Both kernels are bound by the products: half the arithmetic of an attention forward pass each.

Shapes: B batch, Q query heads, H KV heads, G score rows, L tokens, C chunks, d head_dim; S queries, T keys of a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.logits import load_keys
from indexmem.kernels.pooled import join_pooled, lanes_of, pooled_chunk, pooled_constants, pooling, walk


@pooling(("chunk", "HEADS", "SPAN", "SPANS"))
@triton.jit(do_not_specialize=("tokens", "rows", "chunks"))
def _chunk_maxima(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, k_ptr, lse_ptr, length_ptr, best_ptr,
    scale, tokens, rows, chunk, chunks,
    q_batch, q_head, q_token, q_dim, k_batch, k_head, k_token, k_dim,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
    MEAN: tl.constexpr, NORMALISED: tl.constexpr, HELD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(2).to(tl.int64)
    batch, row = lane // rows, lane % rows
    length = tl.load(length_ptr + batch).to(tl.int32)
    first = tl.program_id(0) * KEYS
    number = chunks - 1 - tl.program_id(1)  # the last chunk first: it meets the most keys
    key_T = first + tl.arange(0, KEYS)
    present_T = key_T < length
    q_ptr += batch * q_batch
    k_ptr += batch * k_batch
    lse_ptr += batch * rows * HEADS * tokens
    first_head = row * HEADS
    k_dT = load_keys(k_ptr + first_head // GROUP * k_head, key_T, present_T, tl.arange(0, SPAN), k_token, k_dim, DIM)
    start, stop = tl.maximum(number * chunk, first), tl.minimum((number + 1) * chunk, length)
    crossing = tl.minimum(stop, first + KEYS)  # queries before it do not see all keys of the block
    free = start + tl.cdiv(tl.maximum(crossing - start, 0), QUERIES) * QUERIES
    best_ST = tl.full((QUERIES, KEYS), float("-inf"), tl.float32)
    best_ST = walk(
        best_ST, start, crossing, stop - 1, q_ptr, k_ptr, lse_ptr, scale, first_head, key_T, present_T, k_dT, tokens,
        q_head, q_token, q_dim, k_head, k_token, k_dim, HEADS, GROUP, DIM, SPAN, SPANS, MEAN, NORMALISED, HELD, True,
        QUERIES, KEYS,
    )  # fmt: skip
    best_ST = walk(
        best_ST, free, stop, stop - 1, q_ptr, k_ptr, lse_ptr, scale, first_head, key_T, present_T, k_dT, tokens,
        q_head, q_token, q_dim, k_head, k_token, k_dim, HEADS, GROUP, DIM, SPAN, SPANS, MEAN, NORMALISED, HELD, False,
        QUERIES, KEYS,
    )  # fmt: skip
    best_T = tl.where(present_T, tl.max(best_ST, axis=0), float("-inf"))
    tl.store(best_ptr + (number * tl.num_programs(2) + lane) * tokens + key_T, best_T, mask=key_T < tokens)


def teacher_max(
    query_BQLd: Tensor,
    key_BHLd: Tensor,
    lengths_B: Tensor,
    *,
    rows: int,
    scale: float,
    mean: bool,
    lse_BQL: Tensor | None = None,
) -> Tensor:
    """Target [B, rows, L] (fp32; -inf at padded keys) of causal attention; `rows` is 1 or H, any strides.

    With `lse_BQL` (fp32, of the same scaled logits, as `row_lse` gives it) log-probabilities are pooled, else logits.
    L counts padding, too. Products of 16-bit inputs are exact, those of fp32 about as exact as fp32; sums are fp32.
    """
    batch, _, tokens, _ = query_BQLd.shape
    lanes = lanes_of(rows, key_BHLd.shape[1], mean)
    chunk = pooled_chunk(batch * lanes * tokens**2 // 2)
    chunks = triton.cdiv(tokens, chunk)
    best_CBGT = torch.empty(chunks, batch, lanes, tokens, device=query_BQLd.device)
    if lse_BQL is not None:
        lse_BQL = lse_BQL.contiguous()
    _chunk_maxima[lambda meta: (triton.cdiv(tokens, meta["KEYS"]), chunks, batch * lanes)](
        query_BQLd,
        key_BHLd,
        best_CBGT if lse_BQL is None else lse_BQL,  # or any pointer: it is not read
        lengths_B,
        best_CBGT,
        scale,
        tokens,
        lanes,
        chunk,
        chunks,
        *query_BQLd.stride(),
        *key_BHLd.stride(),
        **pooled_constants(query_BQLd, key_BHLd, lanes, mean, lse_BQL is not None),
    )
    return join_pooled(best_CBGT, rows)
