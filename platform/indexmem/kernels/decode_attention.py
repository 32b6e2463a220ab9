"""Attention of a decode step over ragged caches as GPU kernels (Triton) that read every key and value once.

A lane is one KV head of one row. Its tokens lie one after another in flat storage: those kept of the context, then the
columns opened since, of which a row's first few may be a gap (the padding of its question). Lanes differ in length.
A program attends with the queries of one lane to one span of its tokens; a second kernel joins the spans' results by
their log-sum-exp (the split of flash decoding: https://pytorch.org/blog/flash-decoding). The grid is made for the
longest lane, and programs beyond a lane's end return at once: so a launch depends on no length that lies on the device
and can be captured as a CUDA graph. Spans are the same whatever else is in the batch, and so is a row's result.

Shapes: R rows, H KV heads, N = R H lanes, g query heads per KV head, Q = H g, n newest tokens, M = g n queries of a
lane (token by token within a head), C places in storage, T keys of a block, S spans, d head_dim.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.dispatch import DTYPES
from indexmem.kernels.tiles import LOG2_E, SMALLEST_DOT, product

SPAN = 256  # keys of a program for one token: one row of 16K tokens and 8 KV heads then makes 512 programs
TILE_BYTES = 2**14  # of K and of V at a time: two programs fit a multiprocessor, each with three tiles under way
MOST_KEYS = 128  # of a tile
JOINED = 16  # spans that the joining kernel reads at a time
STORED = 16  # new tokens that a program of the storing kernel writes
WIDEST = 256  # head_dim


@triton.jit(do_not_specialize=["spans"])  # which changes as caches grow
def _attend(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    query_ptr, keys_ptr, values_ptr, begin_ptr, kept_ptr, gap_ptr, opened_ptr, part_ptr, lse_ptr,
    scale, new, span, spans,
    query_row, query_head, query_token, query_dim, key_stride, value_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    lane, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = lane // HEADS, lane % HEADS
    kept = tl.load(kept_ptr + lane).to(tl.int32)
    length = kept + tl.load(opened_ptr).to(tl.int32)
    first = number * span
    if first < length:
        begin = tl.load(begin_ptr + lane).to(tl.int64)
        after_gap = kept + tl.load(gap_ptr + row).to(tl.int32)
        query_M = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
        real_M = query_M < GROUP * new
        token_M = query_M % new
        last_M = length - new + token_M  # causal among the new tokens
        dim_d = tl.arange(0, DIM_PADDED)
        query_at_M = row * query_row + (head * GROUP + query_M // new) * query_head + token_M * query_token
        q_Md = tl.load(
            query_ptr + query_at_M[:, None] + dim_d[None, :] * query_dim,
            mask=real_M[:, None] & (dim_d[None, :] < DIM),
            other=0.0,
        )
        best_M = tl.full((QUERIES,), float("-inf"), tl.float32)
        sum_M = tl.zeros((QUERIES,), tl.float32)
        out_Md = tl.zeros((QUERIES, DIM_PADDED), tl.float32)
        for start in range(first, tl.minimum(first + span, length), KEYS):
            key_T = start + tl.arange(0, KEYS)
            present_T = (key_T < length) & ((key_T < kept) | (key_T >= after_gap))
            k_dT = tl.load(
                keys_ptr + (begin + key_T)[None, :] * key_stride + dim_d[:, None],
                mask=present_T[None, :] & (dim_d[:, None] < DIM),
                other=0.0,
            )
            v_Td = tl.load(
                values_ptr + (begin + key_T)[:, None] * value_stride + dim_d[None, :],
                mask=present_T[:, None] & (dim_d[None, :] < DIM),
                other=0.0,
            )
            logit_MT = product(q_Md, k_dT, tl.zeros((QUERIES, KEYS), tl.float32)) * scale
            seen_MT = present_T[None, :] & (key_T[None, :] <= last_M[:, None])
            logit_MT = tl.where(seen_MT, logit_MT, float("-inf"))
            higher_M = tl.maximum(best_M, tl.max(logit_MT, axis=1))
            level_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)  # inf - inf is no number
            weight_MT = tl.exp2(logit_MT - level_M[:, None])
            shrink_M = tl.exp2(best_M - level_M)
            sum_M = sum_M * shrink_M + tl.sum(weight_MT, axis=1)
            out_Md = product(weight_MT.to(v_Td.dtype), v_Td, out_Md * shrink_M[:, None])
            best_M = higher_M
        some_M = tl.where(sum_M > 0.0, sum_M, 1.0)  # a query without keys: 0 and -inf
        at_M = (lane * (GROUP * new) + query_M) * spans + number
        tl.store(
            part_ptr + at_M[:, None] * DIM + dim_d[None, :],
            out_Md / some_M[:, None],
            mask=real_M[:, None] & (dim_d[None, :] < DIM),
        )
        tl.store(lse_ptr + at_M, best_M + tl.log2(some_M), mask=real_M)


@triton.jit(do_not_specialize=["spans"])
def _join(  # type: ignore[no-untyped-def]
    part_ptr, part_lse_ptr, kept_ptr, opened_ptr, out_ptr, lse_ptr,
    new, span, spans,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    query, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(kept_ptr + lane).to(tl.int32) + tl.load(opened_ptr).to(tl.int32)
    used = tl.cdiv(length, span)
    at = lane * (GROUP * new) + query
    dim_d = tl.arange(0, DIM_PADDED)
    best = float("-inf")
    total = 0.0
    out_d = tl.zeros((DIM_PADDED,), tl.float32)
    for start in range(0, used, JOINED):
        span_S = start + tl.arange(0, JOINED)
        lse_S = tl.load(part_lse_ptr + at * spans + span_S, mask=span_S < used, other=float("-inf"))
        part_Sd = tl.load(
            part_ptr + (at * spans + span_S)[:, None] * DIM + dim_d[None, :],
            mask=(span_S < used)[:, None] & (dim_d[None, :] < DIM),
            other=0.0,
        )
        higher = tl.maximum(best, tl.max(lse_S, axis=0))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weight_S = tl.exp2(lse_S - level)
        shrink = tl.exp2(best - level)
        total = total * shrink + tl.sum(weight_S, axis=0)
        out_d = out_d * shrink + tl.sum(weight_S[:, None] * part_Sd, axis=0)
        best = higher
    some = tl.where(total > 0.0, total, 1.0)
    row, head, token = lane // HEADS, (lane % HEADS) * GROUP + query // new, query % new
    out_at = ((row * new + token) * (HEADS * GROUP) + head) * DIM
    tl.store(out_ptr + out_at + dim_d, (out_d / some).to(out_ptr.dtype.element_ty), mask=dim_d < DIM)
    tl.store(lse_ptr + at, (best + tl.log2(some)) * 0.6931471805599453)


@triton.jit
def _store(  # type: ignore[no-untyped-def]
    key_ptr, value_ptr, keys_ptr, values_ptr, begin_ptr, kept_ptr, opened_ptr,
    new, key_row, key_head, key_token, value_row, value_head, value_token, key_stride, value_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64)
    row, head = lane // HEADS, lane % HEADS
    token_n = tl.program_id(1) * STORED + tl.arange(0, STORED)
    dim_d = tl.arange(0, DIM_PADDED)
    real_nd = (token_n < new)[:, None] & (dim_d[None, :] < DIM)
    at = tl.load(begin_ptr + lane).to(tl.int64) + tl.load(kept_ptr + lane) + tl.load(opened_ptr) - new
    key_at_n = row * key_row + head * key_head + token_n * key_token
    value_at_n = row * value_row + head * value_head + token_n * value_token
    k_nd = tl.load(key_ptr + key_at_n[:, None] + dim_d[None, :], mask=real_nd)
    v_nd = tl.load(value_ptr + value_at_n[:, None] + dim_d[None, :], mask=real_nd)
    tl.store(keys_ptr + (at + token_n)[:, None] * key_stride + dim_d[None, :], k_nd, mask=real_nd)
    tl.store(values_ptr + (at + token_n)[:, None] * value_stride + dim_d[None, :], v_nd, mask=real_nd)


def decode_attention(
    query_RQnd: Tensor,
    keys_Cd: Tensor,
    values_Cd: Tensor,
    begin_N: Tensor,
    kept_N: Tensor,
    gap_R: Tensor,
    opened_1: Tensor,
    scaling: float,
    longest: int,
    span: int = SPAN,
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scaling) v over each lane's tokens, causal among the newest n: [R, Q, n, d], and lse [R, Q, n].

    A lane's tokens lie at `begin_N` and behind: `kept_N` of them, then `opened_1` (one number for all lanes, at least
    n), of which the first `gap_R` of a row are left out. `longest`: no lane has more than this; it sets the grid, and
    with `span` (keys per program for n = 1) the memory for partial results. Log-sum-exp is natural, in fp32; a query
    that sees no token gets output 0 and -inf. Queries may have any strides, storage any stride between its places.
    """
    rows, query_heads, new, dim = query_RQnd.shape
    lanes = len(begin_N)
    heads = lanes // rows
    group = query_heads // heads
    assert keys_Cd.stride(1) == values_Cd.stride(1) == 1, "a token's numbers lie side by side"
    assert query_RQnd.dtype == keys_Cd.dtype == values_Cd.dtype and query_RQnd.dtype in DTYPES
    assert dim <= WIDEST
    span *= triton.next_power_of_2(new)  # several tokens: so that partial results take no more memory than for one
    spans = triton.cdiv(longest, span)
    padded = max(SMALLEST_DOT, triton.next_power_of_2(dim))
    queries = min(max(SMALLEST_DOT, triton.next_power_of_2(group * new)), 2**13 // padded)
    keys = max(SMALLEST_DOT, min(MOST_KEYS, span, TILE_BYTES // (padded * keys_Cd.element_size())))
    assert span % keys == 0, "a program's last tile ends with its span"
    device = query_RQnd.device
    part_NMSd = torch.empty(lanes, group * new, spans, dim, device=device)
    part_lse_NMS = torch.empty(lanes, group * new, spans, device=device)
    out_RnQd = torch.empty(rows, new, query_heads, dim, dtype=query_RQnd.dtype, device=device)
    lse_RQn = torch.empty(rows, query_heads, new, device=device)
    sizes = {"HEADS": heads, "GROUP": group, "DIM": dim, "DIM_PADDED": padded}
    _attend[(lanes, spans, triton.cdiv(group * new, queries))](
        query_RQnd, keys_Cd, values_Cd, begin_N, kept_N, gap_R, opened_1, part_NMSd, part_lse_NMS,
        scaling * LOG2_E.value, new, span, spans, *query_RQnd.stride(), keys_Cd.stride(0), values_Cd.stride(0),
        **sizes, QUERIES=queries, KEYS=keys, num_warps=4, num_stages=3,
    )  # fmt: skip
    _join[(group * new, lanes)](
        part_NMSd, part_lse_NMS, kept_N, opened_1, out_RnQd, lse_RQn, new, span, spans, **sizes, JOINED=JOINED,
        num_warps=4 if dim > 64 else 2,
    )  # fmt: skip
    return out_RnQd.transpose(1, 2), lse_RQn


def store_newest(
    key_RHnd: Tensor,
    value_RHnd: Tensor,
    keys_Cd: Tensor,
    values_Cd: Tensor,
    begin_N: Tensor,
    kept_N: Tensor,
    opened_1: Tensor,
) -> None:
    """Write K and V of the newest n tokens to the last n of the `opened_1` places behind each lane's kept tokens."""
    rows, heads, new, dim = key_RHnd.shape
    assert key_RHnd.stride(3) == value_RHnd.stride(3) == 1, "a token's numbers lie side by side"
    _store[(rows * heads, triton.cdiv(new, STORED))](
        key_RHnd, value_RHnd, keys_Cd, values_Cd, begin_N, kept_N, opened_1,
        new, *key_RHnd.stride()[:3], *value_RHnd.stride()[:3], keys_Cd.stride(0), values_Cd.stride(0),
        HEADS=heads, DIM=dim, DIM_PADDED=triton.next_power_of_2(dim), STORED=STORED,
    )  # fmt: skip
