"""The indexer's scoring and its maximum over queries as one GPU kernel (Triton).

What `causal_max` does with score blocks in memory, this does in registers: a program owns a block of keys, walks over
the queries from there on, sums the heads and keeps the maximum and the query that gave it. Only [B, G, L] is written.

Shapes: B batch, L tokens, G score rows, H indexer heads per row, i indexer dim, S queries and T keys of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KEYS, QUERIES, WARPS = 64, 64, 4  # of a program
SMALLEST_DOT = 16  # columns that a matrix product in a kernel must have


@triton.jit
def _causal_max(  # type: ignore[no-untyped-def]  # parameters are the kernel's own types
    q_ptr, k_ptr, alpha_ptr, length_ptr, best_ptr, winner_ptr,
    tokens, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ACTIVATION: tl.constexpr,
    KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    length = tl.load(length_ptr + batch).to(tl.int32)
    first = tl.program_id(0) * KEYS
    key_T = first + tl.arange(0, KEYS)
    dim_i = tl.arange(0, DIM_PADDED)
    present_T = key_T < length
    k_iT = tl.load(
        k_ptr + (batch * tokens + key_T[None, :]) * DIM + dim_i[:, None],
        mask=present_T[None, :] & (dim_i[:, None] < DIM),
        other=0.0,
    )
    best_T = tl.full((KEYS,), float("-inf"), tl.float32)
    winner_T = key_T
    for start in range(first, length, QUERIES):
        query_S = start + tl.arange(0, QUERIES)
        real_S = query_S < length
        score_ST = tl.zeros((QUERIES, KEYS), tl.float32)
        for head in tl.static_range(HEADS):
            at_S = ((batch * tokens + query_S) * rows + row) * HEADS + head
            q_Si = tl.load(
                q_ptr + at_S[:, None] * DIM + dim_i[None, :],
                mask=real_S[:, None] & (dim_i[None, :] < DIM),
                other=0.0,
            )
            alpha_S = tl.load(alpha_ptr + at_S, mask=real_S, other=0.0).to(tl.float32)
            z_ST = tl.dot(q_Si, k_iT, input_precision="tf32x3")
            if ACTIVATION == "relu":
                z_ST = tl.maximum(z_ST, 0.0)
            elif ACTIVATION == "softplus":
                z_ST = tl.where(z_ST > 20.0, z_ST, tl.log(1.0 + tl.exp(z_ST)))
            score_ST += alpha_S[:, None] * z_ST
        seen_ST = (query_S[:, None] >= key_T[None, :]) & real_S[:, None]
        score_ST = tl.where(seen_ST, score_ST, float("-inf"))
        value_T, at_T = tl.max(score_ST, axis=0, return_indices=True, return_indices_tie_break_left=True)
        better_T = value_T > best_T
        best_T = tl.where(better_T, value_T, best_T)
        winner_T = tl.where(better_T, start + at_T, winner_T)
    out_T = (batch * rows + row) * tokens + key_T
    tl.store(best_ptr + out_T, best_T, mask=key_T < tokens)
    tl.store(winner_ptr + out_T, winner_T.to(tl.int64), mask=key_T < tokens)


def fused_causal_max(
    q_BSGHi: Tensor, k_BTi: Tensor, alpha_BSGH: Tensor, lengths_B: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Maxima [B, G, L] (fp32) and winning queries [B, G, L] (int64) of A = sum_h alpha act(q . k), as `causal_max`.

    L is the longest length. Products are as exact as fp32 ones (three TF32 products each), in another order of sums.
    """
    tokens = int(lengths_B.max())
    batch, _, rows, heads, dim = q_BSGHi.shape
    best_BGT = torch.empty(batch, rows, tokens, device=q_BSGHi.device)
    winner_BGT = torch.empty(batch, rows, tokens, dtype=torch.int64, device=q_BSGHi.device)
    padded = max(SMALLEST_DOT, triton.next_power_of_2(dim))
    _causal_max[(triton.cdiv(tokens, KEYS), rows, batch)](
        q_BSGHi[:, :tokens].contiguous(),
        k_BTi[:, :tokens].contiguous(),
        alpha_BSGH[:, :tokens].contiguous(),
        lengths_B,
        best_BGT,
        winner_BGT,
        tokens,
        rows,
        HEADS=heads,
        DIM=dim,
        DIM_PADDED=padded,
        ACTIVATION=activation,
        KEYS=KEYS,
        QUERIES=QUERIES,
        num_warps=WARPS,
    )
    return best_BGT, winner_BGT
