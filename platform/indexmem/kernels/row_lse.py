"""The log-sum-exp of each row of causal attention logits, streamed over keys: what turns logits into log-probabilities.

    lse[h,s] = log sum over t <= s of exp(scale q[h,s] . k[t])

A program owns a block of queries of one head and walks over the keys up to its last query with a running maximum and a
running sum (Milakov and Gimelshein, arXiv 1805.02867), in base 2. Attention kernels make the same numbers on their way;
this one serves where they do not give them away.

Shapes: B batch, Q query heads, H KV heads, L tokens, S queries and T keys of a tile, d head_dim.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.logits import NEITHER, load_queries, logits, span_of
from indexmem.kernels.logits import QUERIES as QUERIES_HELD
from indexmem.kernels.tiles import LOG2_E, autotuned

_HALF = [
    triton.Config({"QUERIES": 128, "KEYS": 64}, num_warps=4, num_stages=3),
    triton.Config({"QUERIES": 128, "KEYS": 128}, num_warps=8, num_stages=3),
    triton.Config({"QUERIES": 64, "KEYS": 64}, num_warps=4, num_stages=2),
]
_SINGLE = _HALF[-1:]


@triton.jit
def _walk(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    most_S, sum_S, start, stop, q_ptr, k_ptr, query_S, q_Sd, length, scale, q_token, q_dim, k_token, k_dim,
    DIM: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr, HELD: tl.constexpr, CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Running maximum and sum after the keys from `start` to before `stop`; `scale` is in base 2."""
    for tile in range(start, stop, KEYS):
        key_T = tile + tl.arange(0, KEYS)
        z_ST = scale * logits(
            q_ptr, k_ptr, query_S, key_T, key_T < length, q_token, q_dim, k_token, k_dim, q_Sd, DIM, SPAN, SPANS,
            QUERIES, KEYS, HELD,
        )  # fmt: skip
        if CAUSAL:
            z_ST = tl.where(query_S[:, None] >= key_T[None, :], z_ST, float("-inf"))
        more_S = tl.maximum(most_S, tl.max(z_ST, axis=1))
        sum_S = sum_S * tl.exp2(most_S - more_S) + tl.sum(tl.exp2(z_ST - more_S[:, None]), axis=1)
        most_S = more_S
    return most_S, sum_S


@autotuned(_HALF, _SINGLE, key=("length_class", "SPAN", "SPANS"))
@triton.jit(do_not_specialize=("tokens", "length_class"))
def _row_lse(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, k_ptr, length_ptr, lse_ptr, scale, tokens, length_class,
    q_batch, q_head, q_token, q_dim, k_batch, k_head, k_token, k_dim,
    GROUP: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr, HELD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    length = tl.load(length_ptr + batch).to(tl.int32)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # the last block first: it sees the most keys
    place_S = first + tl.arange(0, QUERIES)
    query_S = tl.minimum(place_S, length - 1)
    q_ptr += batch * q_batch + head * q_head
    k_ptr += batch * k_batch + head // GROUP * k_head
    q_Sd = load_queries(q_ptr, query_S, tl.arange(0, SPAN), q_token, q_dim, DIM)
    shared = tl.minimum(first, length - 1) // KEYS * KEYS  # keys before it are seen by all queries of the block
    most_S = tl.full((QUERIES,), float("-inf"), tl.float32)
    sum_S = tl.zeros((QUERIES,), tl.float32)
    most_S, sum_S = _walk(
        most_S, sum_S, 0, shared, q_ptr, k_ptr, query_S, q_Sd, length, scale, q_token, q_dim, k_token, k_dim,
        DIM, SPAN, SPANS, HELD, False, QUERIES, KEYS,
    )  # fmt: skip
    most_S, sum_S = _walk(
        most_S, sum_S, shared, tl.minimum(first + QUERIES, length), q_ptr, k_ptr, query_S, q_Sd, length, scale,
        q_token, q_dim, k_token, k_dim, DIM, SPAN, SPANS, HELD, True, QUERIES, KEYS,
    )  # fmt: skip
    out_S = (batch * tl.num_programs(1) + head) * tokens + place_S
    tl.store(lse_ptr + out_S, (most_S + tl.log2(sum_S)) / LOG2_E, mask=place_S < tokens)


def row_lse(query_BQLd: Tensor, key_BHLd: Tensor, lengths_B: Tensor, scale: float) -> Tensor:
    """Natural log-sum-exp [B, Q, L] (fp32) of causal rows of scale * q . k; any strides.

    L counts padding, too; at a sequence's padded queries stands the value of its last real one.
    """
    batch, heads, tokens, dim = query_BQLd.shape
    lse_BQL = torch.empty(batch, heads, tokens, device=query_BQLd.device)
    span = span_of(dim, query_BQLd.dtype)
    spans = triton.cdiv(dim, span)
    _row_lse[lambda meta: (triton.cdiv(tokens, meta["QUERIES"]), heads, batch)](
        query_BQLd,
        key_BHLd,
        lengths_B,
        lse_BQL,
        scale * LOG2_E.value,
        tokens,
        triton.next_power_of_2(tokens),
        *query_BQLd.stride(),
        *key_BHLd.stride(),
        GROUP=heads // key_BHLd.shape[1],
        DIM=dim,
        SPAN=span,
        SPANS=spans,
        HELD=(QUERIES_HELD if spans == 1 else NEITHER).value,
    )
    return lse_BQL
