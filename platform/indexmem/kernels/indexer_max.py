"""The indexer's scores and their maximum over queries in one pass: neither L x L scores nor a head's z are stored.

    best[t]   = max over t <= s < length of  A[s,t] = sum_h alpha[s,h] act(q[s,h] . k[t])
    winner[t] = the earliest s that reaches it

Of the ReLU, half is linear: 2 relu(z) = z + |z|, and the linear parts of all heads are one product,

    2 A[s,t] = q~[s] . k[t] + sum_h alpha[s,h] |q[s,h] . k[t]|,   q~[s] = sum_h alpha[s,h] q[s,h]

so that a head costs one multiply-add, whose |z| is free (`linear_part`: q~ as few addends of the inputs' dtype, and
the unit in which sums are stored).

A program owns a block of keys and one chunk of the queries, walks over the chunk tile by tile, sums the heads in
registers and keeps, for each element of the tile, the best score and the tile that gave it. Chunks are joined
afterwards, over [C, B, G, T]. They bound the longest program, so that early keys, which all queries see, hold up
nothing, and make enough programs of one short row (docs/kernels.md).

Few queries in a tile keep to `mma`: `wgmma` waits longer than its products over 16 dimensions take. Many keys make up
for it: the more a program has, the less often queries are read from the L2 cache.

Shapes: B batch, T tokens, G score rows, H indexer heads per row, i indexer dim, P addends of q~, C chunks; S queries,
all or of a tile, and T keys likewise.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.linear_part import linear_part
from indexmem.kernels.tiles import SMALLEST_DOT, autotuned, chunk_of, product

_PROGRAMS = 4096  # of the largest grid: some 10 for each that runs at a time, so that the last ones to end cost little
_BLOCK = 256  # keys of a program, as `chunk_of` counts them
_HALF = [  # so many registers let three programs of four warps fit, six of two
    triton.Config({"QUERIES": 16, "KEYS": 256, "STAGES": 3}, num_warps=4, maxnreg=168),
    triton.Config({"QUERIES": 16, "KEYS": 128, "STAGES": 3}, num_warps=2, maxnreg=168),
    triton.Config({"QUERIES": 32, "KEYS": 128, "STAGES": 3}, num_warps=4, maxnreg=168),  # for short texts
]
_SINGLE = [
    triton.Config({"QUERIES": 16, "KEYS": 128, "STAGES": 3}, num_warps=4),
    triton.Config({"QUERIES": 64, "KEYS": 64, "STAGES": 2}, num_warps=4),  # by `wgmma`
    triton.Config({"QUERIES": 16, "KEYS": 64, "STAGES": 3}, num_warps=2),  # for short texts
]


@triton.jit
def _added(q_Si, k_iT, sum_ST):  # type: ignore[no-untyped-def]  # tiles of a kernel
    """sum + q k: `product`, whose three TF32 products look for NaNs in every z, without that."""
    if q_Si.dtype != tl.float32:
        return product(q_Si, k_iT, sum_ST)
    else:
        high_Si, high_iT = _nearest_tf32(q_Si), _nearest_tf32(k_iT)
        sum_ST = tl.dot(q_Si - high_Si, high_iT, sum_ST, input_precision="tf32")
        sum_ST = tl.dot(high_Si, k_iT - high_iT, sum_ST, input_precision="tf32")
        return tl.dot(high_Si, high_iT, sum_ST, input_precision="tf32")


@triton.jit
def _nearest_tf32(x):  # type: ignore[no-untyped-def]  # a tile of a kernel
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _walk(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    best_ST, tile_ST, start, stop, last, rows, key_T, k_iT, q_ptr, linear_ptr, alpha_ptr,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ACTIVATION: tl.constexpr, ADDENDS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Best scores and their tiles after the queries from `start` to before `stop`; those after `last` count as it."""
    dim_i = tl.arange(0, DIM_PADDED)[None, :]
    for tile in tl.range(start, stop, QUERIES, num_stages=STAGES):  # as the loop's own, for alpha, too
        query_S = tl.minimum(tile + tl.arange(0, QUERIES), last)
        at_S = query_S * rows
        score_ST = tl.zeros((QUERIES, KEYS), tl.float32)
        for addend in tl.static_range(ADDENDS):
            addend_Si = at_S[:, None] * (ADDENDS * DIM) + (addend * DIM + dim_i)
            linear_Si = tl.load(linear_ptr + addend_Si, mask=dim_i < DIM, other=0.0)
            score_ST = _added(linear_Si, k_iT, score_ST)
        for head in tl.static_range(HEADS):
            head_Si = at_S[:, None] * (HEADS * DIM) + (head * DIM + dim_i)
            q_Si = tl.load(q_ptr + head_Si, mask=dim_i < DIM, other=0.0)
            alpha_S = tl.load(alpha_ptr + at_S * HEADS + head)
            z_ST = _added(q_Si, k_iT, tl.zeros((QUERIES, KEYS), tl.float32))
            if ACTIVATION == "relu":
                z_ST = tl.abs(z_ST)
            elif ACTIVATION == "softplus":
                z_ST = tl.maximum(z_ST, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(z_ST)))
            score_ST += alpha_S[:, None] * z_ST
        if CAUSAL:
            score_ST = tl.where(query_S[:, None] >= key_T[None, :], score_ST, float("-inf"))
        better_ST = score_ST > best_ST
        best_ST = tl.where(better_ST, score_ST, best_ST)
        tile_ST = tl.where(better_ST, tile, tile_ST)
    return best_ST, tile_ST


@autotuned(_HALF, _SINGLE, key=("chunk", "HEADS", "DIM_PADDED", "ACTIVATION"))
@triton.jit(do_not_specialize=("tokens", "rows", "chunks"))
def _chunk_maxima(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, k_ptr, linear_ptr, alpha_ptr, unit_ptr, length_ptr, best_ptr, winner_ptr,
    tokens, rows, chunk, chunks, k_batch, k_token, k_dim,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ACTIVATION: tl.constexpr, ADDENDS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(2).to(tl.int64)
    batch, row = lane // rows, lane % rows
    length = tl.load(length_ptr + batch).to(tl.int32)
    first = tl.program_id(0) * KEYS
    number = chunks - 1 - tl.program_id(1)  # the last chunk first: it meets the most keys
    key_T = first + tl.arange(0, KEYS)
    dim_i = tl.arange(0, DIM_PADDED)
    k_iT = tl.load(
        k_ptr + batch * k_batch + key_T[None, :] * k_token + dim_i[:, None] * k_dim,
        mask=(key_T[None, :] < length) & (dim_i[:, None] < DIM),
        other=0.0,
    )
    at = batch * tokens * rows + row  # of the first query
    q_ptr += at * (HEADS * DIM)
    linear_ptr += at * (ADDENDS * DIM)
    alpha_ptr += at * HEADS
    start, stop = tl.maximum(number * chunk, first), tl.minimum((number + 1) * chunk, length)
    crossing = tl.minimum(stop, first + KEYS)  # queries before it do not see all keys of the block
    free = start + tl.cdiv(tl.maximum(crossing - start, 0), QUERIES) * QUERIES
    best_ST = tl.full((QUERIES, KEYS), float("-inf"), tl.float32)
    tile_ST = tl.zeros((QUERIES, KEYS), tl.int32)
    best_ST, tile_ST = _walk(
        best_ST, tile_ST, start, crossing, stop - 1, rows, key_T, k_iT, q_ptr, linear_ptr, alpha_ptr,
        HEADS, DIM, DIM_PADDED, ACTIVATION, ADDENDS, QUERIES, KEYS, STAGES, CAUSAL=True,
    )  # fmt: skip
    best_ST, tile_ST = _walk(
        best_ST, tile_ST, free, stop, stop - 1, rows, key_T, k_iT, q_ptr, linear_ptr, alpha_ptr,
        HEADS, DIM, DIM_PADDED, ACTIVATION, ADDENDS, QUERIES, KEYS, STAGES, CAUSAL=False,
    )  # fmt: skip
    best_T = tl.max(best_ST, axis=0)
    query_ST = tl.minimum(tile_ST + tl.arange(0, QUERIES)[:, None], stop - 1)
    winner_T = tl.min(tl.where(best_ST == best_T[None, :], query_ST, tokens), axis=0)
    reached_T = (key_T < length) & (best_T > float("-inf"))
    if ACTIVATION == "relu":
        best_T *= tl.load(unit_ptr + lane)
    out_T = (number * tl.num_programs(2) + lane) * tokens + key_T
    tl.store(best_ptr + out_T, tl.where(reached_T, best_T, float("-inf")), mask=key_T < tokens)
    tl.store(winner_ptr + out_T, tl.where(reached_T, winner_T, key_T), mask=key_T < tokens)


def indexer_max(
    q_BSGHi: Tensor, k_BTi: Tensor, alpha_BSGH: Tensor, lengths_B: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Maxima [B, G, T] (fp32) and winning queries [B, G, T] (int64) of the scores; any strides, S = T, no host waits.

    At padded keys the maximum is -inf and the winner the key's own position; ties go to the earliest query. q and k are
    of one dtype: products of fp32 are about as exact as fp32, those of bf16 and fp16 exact, and all sums are fp32. No
    gradients.
    """
    batch, tokens, rows, heads, dim = q_BSGHi.shape
    assert q_BSGHi.dtype == k_BTi.dtype and q_BSGHi[0].numel() < 2**31
    q_BSGHi = q_BSGHi.contiguous()  # constant distances of the heads let one address serve them all
    if activation == "relu":
        linear_BSGPi, alpha_BSGH, unit_BG = linear_part(q_BSGHi, alpha_BSGH, lengths_B)
    else:
        alpha_BSGH = alpha_BSGH.float().contiguous()
        linear_BSGPi, unit_BG = q_BSGHi[:, :, :, :0], alpha_BSGH  # neither is read
    chunk = chunk_of(batch * rows * tokens**2 // 2, _BLOCK, _PROGRAMS)
    chunks = triton.cdiv(tokens, chunk)
    best_CBGT = torch.empty(chunks, batch, rows, tokens, device=q_BSGHi.device)
    # As returned: a narrower type would cost a launch more, which at few tokens is much of the time.
    winner_CBGT = torch.empty(chunks, batch, rows, tokens, dtype=torch.int64, device=q_BSGHi.device)
    _chunk_maxima[lambda meta: (triton.cdiv(tokens, meta["KEYS"]), chunks, batch * rows)](
        q_BSGHi,
        k_BTi,
        linear_BSGPi,
        alpha_BSGH,
        unit_BG,
        lengths_B,
        best_CBGT,
        winner_CBGT,
        tokens,
        rows,
        chunk,
        chunks,
        *k_BTi.stride(),
        HEADS=heads,
        DIM=dim,
        DIM_PADDED=max(SMALLEST_DOT, triton.next_power_of_2(dim)),
        ACTIVATION=activation,
        ADDENDS=linear_BSGPi.shape[3],
    )
    if chunks == 1:
        return best_CBGT[0], winner_CBGT[0]
    best_BGT, number_BGT = best_CBGT.max(dim=0)  # the first of equal chunks
    return best_BGT, winner_CBGT.gather(0, number_BGT[None])[0]
