"""Causal attention to kept tokens: every query sees those at or before its own position.

On a GPU one kernel (flex attention) visits only blocks of kept tokens that some query of a block sees. Kept positions
ascend, so which these are follows from each block's first and last position. Elsewhere masked blocks of queries run.
Shapes: H KV heads, g query heads per KV head, Q = H g, L queries, K kept tokens, P = K rounded up to whole blocks,
M blocks of queries, N blocks of kept tokens, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128  # of queries, and of kept tokens, in the block mask
QUERY_BLOCK = (
    1024  # queries that attend at once without the kernel: bounds their mask at QUERY_BLOCK x K per query head
)


def attend_to_kept(query_QLd: Tensor, key_HKd: Tensor, value_HKd: Tensor, kept_HK: Tensor, scaling: float) -> Tensor:
    """softmax over kept tokens at or before each query's position: [L, Q, d].

    `kept_HK` ascends and begins with position 0 in every head. A position of L or more is padding: no query sees it.
    """
    if query_QLd.is_cuda:
        return attend_by_block_mask(query_QLd, key_HKd, value_HKd, kept_HK, scaling, _compiled_flex())
    return attend_in_query_blocks(query_QLd, key_HKd, value_HKd, kept_HK, scaling)


def attend_by_block_mask(
    query_QLd: Tensor,
    key_HKd: Tensor,
    value_HKd: Tensor,
    kept_HK: Tensor,
    scaling: float,
    attend: Callable[..., Any] = flex_attention,
) -> Tensor:
    """By flex attention; `attend` is that, or its compiled form."""
    # Whole blocks only: what is added lies after every query, and the kernel needs no bounds checks on keys.
    added = -kept_HK.shape[1] % BLOCK
    kept_HP = F.pad(kept_HK, (0, added), value=query_QLd.shape[1]).int()
    key_HPd, value_HPd = (F.pad(x, (0, 0, 0, added)) for x in (key_HKd, value_HKd))
    mask = block_mask(kept_HP, query_QLd.shape[1], query_QLd.shape[0] // kept_HK.shape[0])
    output_1QLd = attend(
        query_QLd[None], key_HPd[None], value_HPd[None], block_mask=mask, scale=scaling, enable_gqa=True
    )
    return output_1QLd[0].transpose(0, 1)


def block_mask(kept_HP: Tensor, length: int, group: int) -> BlockMask:
    """Which blocks of kept tokens each block of queries sees in full, and which in part; never L x K.

    With blocks in ascending order, the full ones are the first: they end at or before the first query. Partial ones
    follow, until a block begins after the last query. Raises AssertionError unless P is a multiple of the block.
    """
    heads, padded = kept_HP.shape
    assert padded % BLOCK == 0, "kept positions come in whole blocks"
    start_M = torch.arange(0, length, BLOCK, device=kept_HP.device, dtype=kept_HP.dtype)
    stop_M = (start_M + BLOCK).clamp(max=length) - 1
    begins_HN, ends_HN = kept_HP[:, ::BLOCK].contiguous(), kept_HP[:, BLOCK - 1 :: BLOCK].contiguous()
    full_HM = torch.searchsorted(ends_HN, start_M.repeat(heads, 1), right=True, out_int32=True)
    seen_HM = torch.searchsorted(begins_HN, stop_M.repeat(heads, 1), right=True, out_int32=True)
    blocks = ends_HN.shape[1]
    index_N = torch.arange(blocks, device=kept_HP.device, dtype=torch.int32)
    full_HMN = index_N.expand(heads, len(start_M), blocks)
    partial_HMN = (full_HM[..., None] + index_N).clamp(max=blocks - 1)  # the first `partial` of them count

    def sees(batch: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        return kept_HP[head // group, column] <= query

    for_queries: Callable[[Tensor], Tensor] = lambda x: x.repeat_interleave(group, 0)[None].contiguous()  # noqa: E731
    return BlockMask.from_kv_blocks(
        for_queries(seen_HM - full_HM),
        for_queries(partial_HMN),
        for_queries(full_HM),
        for_queries(full_HMN),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(length, padded),
    )


def attend_in_query_blocks(
    query_QLd: Tensor, key_HKd: Tensor, value_HKd: Tensor, kept_HK: Tensor, scaling: float, block: int = QUERY_BLOCK
) -> Tensor:
    """By masked attention, `block` queries at a time."""
    heads, length = key_HKd.shape[0], query_QLd.shape[1]
    query_HgLd = query_QLd.unflatten(0, (heads, -1))
    group = query_HgLd.shape[1]
    blocks = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        position_S = torch.arange(start, stop, device=kept_HK.device)
        seen = int((kept_HK < stop).sum(1).max())  # ascending: later columns are in every query's future
        mask_HST = kept_HK[:, None, :seen] <= position_S[:, None]
        output_HsTd = F.scaled_dot_product_attention(
            query_HgLd[:, :, start:stop].flatten(1, 2)[None],
            key_HKd[None, :, :seen],
            value_HKd[None, :, :seen],
            attn_mask=mask_HST.repeat(1, group, 1)[None],
            scale=scaling,
        )[0]
        blocks.append(output_HsTd.unflatten(1, (group, -1)).flatten(0, 1).transpose(0, 1))
    return torch.cat(blocks)


@cache
def _compiled_flex() -> Callable[..., Any]:
    """One kernel for all lengths: contexts differ in theirs, and a kernel for each would be compiled over and over."""
    return torch.compile(flex_attention, dynamic=True)
