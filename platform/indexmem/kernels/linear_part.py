"""The linear part of the indexer's ReLU scores (`indexer_max`): q~[s] = sum_h alpha[s,h] q[s,h].

It is given as the sum of few addends of q's dtype, so that tensor cores multiply it as they do q. Those of fp16 have a
narrow range: there q~, and alpha with it, are scaled by one power of two for each row of scores, so that q~ neither
overflows nor loses its last bits. The scale follows from the largest |q~| of all queries before the sequence's end, so
it takes a pass of its own. Few launches matter more than the work, which is tiny: on the host, each one costs as much.

Shapes: B batch, S queries, all or of a block, G score rows, H indexer heads per row, i indexer dim, P addends of q~, N
blocks of queries.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ADDENDS_OF = {torch.float16: 2, torch.bfloat16: 3, torch.float32: 1}  # of q~, 22 to 24 bits together
EXPONENT = tl.constexpr(15)  # q~ is scaled to just below 2^15 for fp16,
TINY = tl.constexpr(1e-6)  # or as if its largest number were this one
QUERIES = 128  # of a program
MAXIMA = 1024  # of blocks, read at once


@triton.jit
def _sum_over_heads(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    query_S, real_S, rows, q_ptr, alpha_ptr, alpha_token, alpha_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """q~ of a block, 0 where not `real_S`: padding, which may hold anything, is not read."""
    dim_i = tl.arange(0, DIM_PADDED)[None, :]
    linear_Si = tl.zeros((QUERIES, DIM_PADDED), tl.float32)
    for head in tl.static_range(HEADS):
        q_Si = tl.load(
            q_ptr + query_S[:, None] * (rows * HEADS * DIM) + (head * DIM + dim_i),
            mask=real_S[:, None] & (dim_i < DIM),
            other=0.0,
        )
        alpha_S = tl.load(alpha_ptr + query_S * alpha_token + head * alpha_head, mask=real_S, other=0.0)
        linear_Si += alpha_S.to(tl.float32)[:, None] * q_Si.to(tl.float32)
    return linear_Si


@triton.jit(do_not_specialize=("tokens", "rows"))
def _block_maxima(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, alpha_ptr, length_ptr, maxima_ptr, tokens, rows, alpha_batch, alpha_token, alpha_row, alpha_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """The largest |q~| of each block, [B, G, N]: unlike one atomic maximum, it needs no launch that zeroes it."""
    lane = tl.program_id(1).to(tl.int64)
    batch, row = lane // rows, lane % rows
    query_S = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q_ptr += (batch * tokens * rows + row) * (HEADS * DIM)
    alpha_ptr += batch * alpha_batch + row * alpha_row
    linear_Si = _sum_over_heads(
        query_S, query_S < tl.load(length_ptr + batch), rows, q_ptr, alpha_ptr, alpha_token, alpha_head,
        HEADS, DIM, DIM_PADDED, QUERIES,
    )  # fmt: skip
    tl.store(maxima_ptr + lane * tl.num_programs(0) + tl.program_id(0), tl.max(tl.max(tl.abs(linear_Si), 1), 0))


@triton.jit
def _power_of_two(exponent):  # type: ignore[no-untyped-def]  # a number of a kernel
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=("tokens", "rows"))
def _addends(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, alpha_ptr, length_ptr, maxima_ptr, linear_ptr, scaled_ptr, unit_ptr,
    tokens, rows, alpha_batch, alpha_token, alpha_row, alpha_head,
    HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    ADDENDS: tl.constexpr, SCALED: tl.constexpr, MAXIMA: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    batch, row = lane // rows, lane % rows
    scale, unit = 1.0, 0.5
    if SCALED:
        largest_N = tl.full((MAXIMA,), TINY, tl.float32)
        for start in range(0, tl.num_programs(0), MAXIMA):
            block_N = start + tl.arange(0, MAXIMA)
            maxima_N = tl.load(
                maxima_ptr + lane * tl.num_programs(0) + block_N, mask=block_N < tl.num_programs(0), other=0.0
            )
            largest_N = tl.maximum(largest_N, maxima_N)
        # `frexp` has the largest in [1/2, 1) of 2 to some exponent; `excess` is by how much that is beyond ours.
        excess = (tl.max(largest_N, 0).to(tl.int32, bitcast=True) >> 23) - 126 - EXPONENT
        scale, unit = _power_of_two(-excess), _power_of_two(excess - 1)
    tl.store(unit_ptr + lane, unit)  # the same by all blocks

    query_S = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    real_S = query_S < tl.load(length_ptr + batch)
    first = batch * tokens * rows + row
    q_ptr += first * (HEADS * DIM)
    alpha_ptr += batch * alpha_batch + row * alpha_row
    linear_Si = scale * _sum_over_heads(
        query_S, real_S, rows, q_ptr, alpha_ptr, alpha_token, alpha_head, HEADS, DIM, DIM_PADDED, QUERIES
    )
    dim_i = tl.arange(0, DIM_PADDED)[None, :]
    linear_ptr += first * (ADDENDS * DIM)
    for addend in tl.static_range(ADDENDS):
        addend_Si = linear_Si.to(linear_ptr.dtype.element_ty)
        at_Si = query_S[:, None] * (rows * ADDENDS * DIM) + (addend * DIM + dim_i)
        tl.store(linear_ptr + at_Si, addend_Si, mask=real_S[:, None] & (dim_i < DIM))
        linear_Si -= addend_Si.to(tl.float32)
    head_H = tl.arange(0, HEADS_PADDED)[None, :]
    real_SH = real_S[:, None] & (head_H < HEADS)
    alpha_SH = tl.load(alpha_ptr + query_S[:, None] * alpha_token + head_H * alpha_head, mask=real_SH, other=0.0)
    scaled_SH = scaled_ptr + first * HEADS + query_S[:, None] * (rows * HEADS) + head_H
    tl.store(scaled_SH, scale * alpha_SH.to(tl.float32), mask=real_SH)


def linear_part(q_BSGHi: Tensor, alpha_BSGH: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Addends of q~ [B, S, G, P, i], alpha (fp32, contiguous), and the unit [B, G] of 2 A: A is what they give, by it.

    q is contiguous, alpha of any strides. At padded queries the first two are left as they were allocated.
    """
    assert q_BSGHi.is_contiguous()
    batch, tokens, rows, heads, dim = q_BSGHi.shape
    addends, scaled = ADDENDS_OF[q_BSGHi.dtype], q_BSGHi.dtype == torch.float16
    blocks = triton.cdiv(tokens, QUERIES)
    linear_BSGPi = q_BSGHi.new_empty(batch, tokens, rows, addends, dim)
    scaled_BSGH = torch.empty(alpha_BSGH.shape, device=q_BSGHi.device)
    unit_BG = torch.empty(batch, rows, device=q_BSGHi.device)
    maxima_BGN = torch.empty(batch, rows, blocks, device=q_BSGHi.device) if scaled else unit_BG
    constants = {"HEADS": heads, "DIM": dim, "DIM_PADDED": triton.next_power_of_2(dim), "QUERIES": QUERIES}
    given, sizes = (q_BSGHi, alpha_BSGH, lengths_B, maxima_BGN), (tokens, rows, *alpha_BSGH.stride())
    if scaled:
        _block_maxima[blocks, batch * rows](*given, *sizes, **constants)
    _addends[blocks, batch * rows](
        *given,
        linear_BSGPi,
        scaled_BSGH,
        unit_BG,
        *sizes,
        HEADS_PADDED=triton.next_power_of_2(heads),
        ADDENDS=addends,
        SCALED=scaled,
        MAXIMA=MAXIMA,
        **constants,
    )
    return linear_BSGPi, scaled_BSGH, unit_BG
