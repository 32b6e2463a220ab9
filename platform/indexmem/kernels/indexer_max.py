"""The indexer's scores and their maximum over queries in one pass: neither L x L scores nor a head's z are stored.

    best[t]   = max over t <= s < length of  A[s,t] = sum_h alpha[s,h] act(q[s,h] . k[t])
    winner[t] = the earliest s that reaches it

A program owns a block of keys and one chunk of the queries, walks over the chunk tile by tile, sums the heads in
registers and keeps, for each place of the tile, the best score and the tile that gave it. Chunks are joined afterwards,
over [C, B, G, L]. They bound the longest program, so that early keys, which all queries see, hold up nothing, and make
enough programs of one short row (docs/kernels.md).

Shapes: B batch, L tokens, G score rows, H indexer heads per row, i indexer dim, C chunks; S queries, T keys of a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from indexmem.kernels.tiles import SMALLEST_DOT, autotuned, chunk_of, product

PROGRAMS = 8192  # of the largest grid: some 20 for each that runs at a time, so that the last ones to end cost little
BLOCK = 64  # keys of a program, as `chunk_of` counts them
HALF = [
    triton.Config({"QUERIES": 64, "KEYS": 64}, num_warps=4, num_stages=2),
    triton.Config({"QUERIES": 64, "KEYS": 64}, num_warps=4, num_stages=2, maxnreg=168),  # three programs fit
    triton.Config({"QUERIES": 64, "KEYS": 32}, num_warps=4, num_stages=2),
]
SINGLE = [
    triton.Config({"QUERIES": 64, "KEYS": 32}, num_warps=4, num_stages=2),  # does not spill
    triton.Config({"QUERIES": 64, "KEYS": 64}, num_warps=4, num_stages=2),
]


@triton.jit
def _walk(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    best_ST, tile_ST, start, stop, last, key_T, k_iT, q_ptr, alpha_ptr, q_token, q_head, q_dim, a_token, a_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ACTIVATION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Best scores and their tiles after the queries from `start` to before `stop`; those after `last` count as it."""
    dim_i = tl.arange(0, DIM_PADDED)
    for tile in range(start, stop, QUERIES):
        query_S = tl.minimum(tile + tl.arange(0, QUERIES), last)
        score_ST = tl.zeros((QUERIES, KEYS), tl.float32)
        for head in tl.static_range(HEADS):
            q_Si = tl.load(
                q_ptr + query_S[:, None] * q_token + head * q_head + dim_i[None, :] * q_dim,
                mask=dim_i[None, :] < DIM,
                other=0.0,
            )
            alpha_S = tl.load(alpha_ptr + query_S * a_token + head * a_head).to(tl.float32)
            z_ST = product(q_Si, k_iT, tl.zeros((QUERIES, KEYS), tl.float32))
            if ACTIVATION == "relu":  # doubled: z + |z| is one addition, twice as fast as a maximum
                score_ST += alpha_S[:, None] * (z_ST + tl.abs(z_ST))
            elif ACTIVATION == "softplus":
                score_ST += alpha_S[:, None] * (tl.maximum(z_ST, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(z_ST))))
            else:
                score_ST += alpha_S[:, None] * z_ST
        if CAUSAL:
            score_ST = tl.where(query_S[:, None] >= key_T[None, :], score_ST, float("-inf"))
        better_ST = score_ST > best_ST
        best_ST = tl.where(better_ST, score_ST, best_ST)
        tile_ST = tl.where(better_ST, tile, tile_ST)
    return best_ST, tile_ST


@autotuned(HALF, SINGLE, key=("chunk", "HEADS", "DIM_PADDED", "ACTIVATION"))
@triton.jit(do_not_specialize=("tokens", "rows", "chunks"))
def _chunk_maxima(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, k_ptr, alpha_ptr, length_ptr, best_ptr, winner_ptr,
    tokens, rows, chunk, chunks,
    q_batch, q_token, q_row, q_head, q_dim, k_batch, k_token, k_dim, a_batch, a_token, a_row, a_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ACTIVATION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
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
    q_ptr += batch * q_batch + row * q_row
    alpha_ptr += batch * a_batch + row * a_row
    start, stop = tl.maximum(number * chunk, first), tl.minimum((number + 1) * chunk, length)
    crossing = tl.minimum(stop, first + KEYS)  # queries before it do not see all keys of the block
    free = start + tl.cdiv(tl.maximum(crossing - start, 0), QUERIES) * QUERIES
    best_ST = tl.full((QUERIES, KEYS), float("-inf"), tl.float32)
    tile_ST = tl.zeros((QUERIES, KEYS), tl.int32)
    best_ST, tile_ST = _walk(
        best_ST, tile_ST, start, crossing, stop - 1, key_T, k_iT, q_ptr, alpha_ptr, q_token, q_head, q_dim, a_token,
        a_head, HEADS, DIM, DIM_PADDED, ACTIVATION, QUERIES, KEYS, CAUSAL=True,
    )  # fmt: skip
    best_ST, tile_ST = _walk(
        best_ST, tile_ST, free, stop, stop - 1, key_T, k_iT, q_ptr, alpha_ptr, q_token, q_head, q_dim, a_token,
        a_head, HEADS, DIM, DIM_PADDED, ACTIVATION, QUERIES, KEYS, CAUSAL=False,
    )  # fmt: skip
    best_T = tl.max(best_ST, axis=0)
    query_ST = tl.minimum(tile_ST + tl.arange(0, QUERIES)[:, None], stop - 1)
    winner_T = tl.min(tl.where(best_ST == best_T[None, :], query_ST, tokens), axis=0)
    if ACTIVATION == "relu":
        best_T *= 0.5
    reached_T = (key_T < length) & (best_T > float("-inf"))
    out_T = (number * tl.num_programs(2) + lane) * tokens + key_T
    tl.store(best_ptr + out_T, tl.where(reached_T, best_T, float("-inf")), mask=key_T < tokens)
    tl.store(winner_ptr + out_T, tl.where(reached_T, winner_T, key_T), mask=key_T < tokens)


def indexer_max(
    q_BSGHi: Tensor, k_BTi: Tensor, alpha_BSGH: Tensor, lengths_B: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Maxima [B, G, L] (fp32) and winning queries [B, G, L] (int64) of the scores; any strides, S = T >= L.

    L is the longest length. At padded keys the maximum is -inf and the winner the key's own position; ties go to the
    earliest query. q and k are of one dtype: products of fp32 are about as exact as fp32, those of bf16 and fp16 exact,
    and all sums are fp32. No gradients.
    """
    tokens = int(lengths_B.max())
    batch, _, rows, heads, dim = q_BSGHi.shape
    assert q_BSGHi.dtype == k_BTi.dtype and q_BSGHi.stride(1) * tokens < 2**31
    chunk = chunk_of(batch * rows, tokens, BLOCK, PROGRAMS)
    chunks = triton.cdiv(tokens, chunk)
    best_CBGT = torch.empty(chunks, batch, rows, tokens, device=q_BSGHi.device)
    winner_CBGT = torch.empty(chunks, batch, rows, tokens, dtype=torch.int32, device=q_BSGHi.device)
    _chunk_maxima[lambda meta: (triton.cdiv(tokens, meta["KEYS"]), chunks, batch * rows)](
        q_BSGHi,
        k_BTi,
        alpha_BSGH,
        lengths_B,
        best_CBGT,
        winner_CBGT,
        tokens,
        rows,
        chunk,
        chunks,
        *q_BSGHi.stride(),
        *k_BTi.stride(),
        *alpha_BSGH.stride(),
        HEADS=heads,
        DIM=dim,
        DIM_PADDED=max(SMALLEST_DOT, triton.next_power_of_2(dim)),
        ACTIVATION=activation,
    )
    best_BGT, number_BGT = best_CBGT.max(dim=0)  # the first of equal chunks
    return best_BGT, winner_CBGT.gather(0, number_BGT[None])[0].long()
