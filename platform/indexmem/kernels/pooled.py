"""The best of the logits that a score row's heads have of a block of keys, over a run of queries: what teachers share.

Shapes: B batch, Q query heads, H KV heads, G score rows, L tokens, C chunks, d head_dim; S queries, T keys of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.logits import KEYS as KEYS_HELD
from indexmem.kernels.logits import NEITHER, logits, span_of
from indexmem.kernels.tiles import autotuned, chunk_of

_BLOCK = 64  # keys of a program, as `chunk_of` counts them
_PROGRAMS = 4096  # of the largest grid that do something, about
_HALF = [
    triton.Config({"QUERIES": 64, "KEYS": 128}, num_warps=4, num_stages=3),
    triton.Config({"QUERIES": 128, "KEYS": 128}, num_warps=8, num_stages=3),
    triton.Config({"QUERIES": 64, "KEYS": 64}, num_warps=4, num_stages=2),
]


def pooling(key: Sequence[str]) -> Callable[[Any], Any]:
    """`autotuned` by the configurations of kernels that `walk`."""
    return autotuned(_HALF, _HALF[-1:], key)


def pooled_chunk(pairs: int) -> int:
    """`chunk_of` for kernels that `walk`."""
    return chunk_of(pairs, _BLOCK, _PROGRAMS)


@triton.jit
def walk(  # type: ignore[no-untyped-def]  # parameters are the kernels' own types
    best_ST, start, stop, last, q_ptr, k_ptr, lse_ptr, scale, first_head, key_T, present_T, k_dT,
    tokens, q_head, q_token, q_dim, k_head, k_token, k_dim,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
    MEAN: tl.constexpr, NORMALISED: tl.constexpr, HELD: tl.constexpr, CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Best pooled logits after the queries from `start` to before `stop`; those after `last` count as it.

    `tokens` is the stride of lse's heads.
    """
    sum_ST = tl.zeros((QUERIES, KEYS), tl.float32)
    for step in range(0, tl.cdiv(tl.maximum(stop - start, 0), QUERIES) * HEADS):
        query_S = tl.minimum(start + step // HEADS * QUERIES + tl.arange(0, QUERIES), last)
        head = first_head + step % HEADS
        z_ST = scale * logits(
            q_ptr + head * q_head, k_ptr + head // GROUP * k_head, query_S, key_T, present_T, q_token, q_dim, k_token,
            k_dim, k_dT, DIM, SPAN, SPANS, QUERIES, KEYS, HELD,
        )  # fmt: skip
        if NORMALISED:
            z_ST -= tl.load(lse_ptr + head * tokens + query_S)[:, None]
        if CAUSAL:
            z_ST = tl.where(query_S[:, None] >= key_T[None, :], z_ST, float("-inf"))
        if MEAN:
            sum_ST += z_ST
            complete = step % HEADS == HEADS - 1
            best_ST = tl.where(complete, tl.maximum(best_ST, sum_ST / HEADS), best_ST)
            sum_ST = tl.where(complete, 0.0, sum_ST)
        else:
            best_ST = tl.maximum(best_ST, z_ST)
    return best_ST


def lanes_of(rows: int, kv_heads: int, mean: bool) -> int:
    """Groups of heads that programs pool; of a maximum over all heads KV heads, whose keys serve a whole program."""
    return rows if mean else kv_heads


def pooled_constants(query_BQLd: Tensor, key_BHLd: Tensor, lanes: int, mean: bool, normalised: bool) -> dict[str, Any]:
    """What `walk` and what calls it are compiled for, tiles apart."""
    heads, dim = query_BQLd.shape[1], query_BQLd.shape[3]
    span = span_of(dim, query_BQLd.dtype)
    spans = triton.cdiv(dim, span)
    group = heads // key_BHLd.shape[1]
    held = KEYS_HELD if spans == 1 and heads // lanes == group else NEITHER
    return {
        **{"HEADS": heads // lanes, "GROUP": group, "DIM": dim, "SPAN": span, "SPANS": spans},
        **{"MEAN": mean, "NORMALISED": normalised, "HELD": held.value},
    }


def join_pooled(best_CBGT: Tensor, rows: int) -> Tensor:
    """Maximum over chunks of queries, and over lanes if there are more than score rows."""
    best_BGT = best_CBGT.amax(dim=0)
    return best_BGT if best_BGT.shape[1] == rows else best_BGT.amax(dim=1, keepdim=True)
