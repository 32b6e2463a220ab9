"""Tiles of attention logits: q . k summed span by span over the head's dims, which need not be a power of two.

A span that holds all dims can be read once and held for many tiles; `HELD` says which operand is.
Shapes: S queries and T keys of a tile, d dims of a span.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from indexmem.kernels.tiles import SMALLEST_DOT, product

HALF_SPAN, SINGLE_SPAN = 128, 32  # dims of a span: of 16-bit inputs, of fp32 (whose products take three times the room)
NEITHER, QUERIES, KEYS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # values of HELD


def span_of(head_dim: int, dtype: torch.dtype) -> int:
    """Dims that a product sums at a time."""
    limit = SINGLE_SPAN if dtype == torch.float32 else HALF_SPAN
    return max(SMALLEST_DOT, min(limit, triton.next_power_of_2(head_dim)))


@triton.jit
def load_queries(q_ptr, query_S, dim_d, q_token, q_dim, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """[S, d] of one head; all of `query_S` exist."""
    return tl.load(
        q_ptr + query_S.to(tl.int64)[:, None] * q_token + dim_d[None, :] * q_dim, mask=dim_d[None, :] < DIM, other=0.0
    )


@triton.jit
def load_keys(k_ptr, key_T, present_T, dim_d, k_token, k_dim, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """[d, T] of one head; 0 where absent."""
    return tl.load(
        k_ptr + key_T.to(tl.int64)[None, :] * k_token + dim_d[:, None] * k_dim,
        mask=present_T[None, :] & (dim_d[:, None] < DIM),
        other=0.0,
    )


@triton.jit
def logits(  # type: ignore[no-untyped-def]  # parameters are the kernels' own types
    q_ptr, k_ptr, query_S, key_T, present_T, q_token, q_dim, k_token, k_dim, held,
    DIM: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr, S: tl.constexpr, T: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """q . k [S, T], unscaled, fp32."""
    z_ST = tl.zeros((S, T), tl.float32)
    for number in tl.static_range(SPANS):
        dim_d = number * SPAN + tl.arange(0, SPAN)
        q_Sd = held if HELD == QUERIES else load_queries(q_ptr, query_S, dim_d, q_token, q_dim, DIM)
        k_dT = held if HELD == KEYS else load_keys(k_ptr, key_T, present_T, dim_d, k_token, k_dim, DIM)
        z_ST = product(q_Sd, k_dT, z_ST)
    return z_ST
