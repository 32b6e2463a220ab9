"""Attention by torch, one call for each bucket of lanes, with masks for what a bucket's lanes do not hold.

Masks are additive: 0 for a token, -inf for none. They lie in storage's order (columns.py), are made when a layer first
attends, and then opened column by column.
Shapes: R rows, H KV heads, g query heads per KV head, Q = H g, n new tokens now, C columns in storage, d head_dim; of a
bucket: N lanes, T columns, W of them up to the end of the kept tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.engine.columns import Columns
from indexmem.engine.opened import Opened


class BucketAttention:
    """See LaneAttention."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._offset_n = torch.empty(0)  # of the newest columns, behind the kept ones
        self._newest: dict[Columns, Tensor] = {}  # where the newest tokens go, [N n]
        self._mask_C: dict[Columns, Tensor] = {}
        self._masked: Columns | None = None  # whose buckets' masks are at hand
        self._masks: list[Tensor] = []

    def extend(self, new: int) -> None:
        count_1 = self._opened.count_1
        self._offset_n = count_1 - 1 if new == 1 else count_1 + torch.arange(-new, 0, device=count_1.device)
        self._newest.clear()
        self._masked, self._masks = None, []

    def store(self, columns: Columns, stored: tuple[Tensor, Tensor], key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        if columns not in self._newest:
            where = self._newest[columns] = (columns.room_N[:, None] + self._offset_n).flatten()
            if columns in self._mask_C:  # then these are no padding: that comes first
                self._mask_C[columns].index_fill_(0, where, 0.0)
        for new_RHnd, stored_Cd in zip((key_RHnd, value_RHnd), stored):
            stored_Cd.index_copy_(0, self._newest[columns], new_RHnd.reshape(-1, new_RHnd.shape[-1]))

    def attend(
        self, columns: Columns, stored: tuple[Tensor, Tensor], query_RQnd: Tensor, scaling: float, wants_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        rows, heads, new, dim = query_RQnd.shape
        lanes = rows * columns.layout.heads
        query_Ngnd = columns.layout.into_places(query_RQnd.reshape(lanes, -1, new, dim))
        reach = self._opened.reach_after(0)
        outputs, sums = [], []
        for bucket, mask_N1nT, *views in zip(
            columns.layout.buckets,
            self._masks_of(columns, new, query_RQnd.dtype),
            *(columns.views(stored_Cd) for stored_Cd in stored),
        ):
            query = query_Ngnd[bucket.places]
            key, value = (view_NTd[:, None, : bucket.width + reach] for view_NTd in views)
            outputs.append(_attention(query, key, value, mask_N1nT, scaling))
            if wants_lse and bucket.remembers:
                logits = (query.flatten(1, 2) @ key[:, 0].transpose(-1, -2)).float().mul_(scaling)
                sums.append(logits.unflatten(1, query.shape[1:3]).add_(mask_N1nT).logsumexp(-1))
            elif wants_lse:
                sums.append(query.new_zeros(query.shape[:3], dtype=torch.float32))  # nobody reads these
        output_RQnd = columns.layout.into_lanes(torch.cat(outputs)).reshape(rows, heads, new, dim)
        if not wants_lse:
            return output_RQnd, None
        return output_RQnd, columns.layout.into_lanes(torch.cat(sums)).reshape(rows, heads, new)

    def _masks_of(self, columns: Columns, new: int, dtype: torch.dtype) -> list[Tensor]:
        """Each bucket's mask [N, 1, n, W + reach].

        Made once for consecutive layers that share their columns, and not kept for longer: several queries' masks are
        large.
        """
        if self._masked is not columns:
            if columns not in self._mask_C:
                self._mask_C[columns] = _mask(columns, self._opened, dtype)
            self._masked, self._masks = columns, self._cut_masks(columns, new)
        return self._masks

    def _cut_masks(self, columns: Columns, new: int) -> list[Tensor]:
        opened, buckets = self._opened, columns.layout.buckets
        reach, first = opened.reach_after(0), opened.filled - new
        views = zip(buckets, columns.views(self._mask_C[columns]))
        masks_NT = [(bucket.width + first, mask_NT[:, : bucket.width + reach]) for bucket, mask_NT in views]
        return [mask_NT[:, None, None] if new == 1 else _causal(mask_NT, first, new) for first, mask_NT in masks_NT]


def _mask(columns: Columns, opened: Opened, dtype: torch.dtype) -> Tensor:
    """[C]: which columns hold a token now."""
    device = columns.kept_N.device
    kept_N = columns.layout.into_places(columns.kept_N)
    gap_N = columns.layout.into_places(opened.gap_R.repeat_interleave(columns.layout.heads))
    masks = []
    for bucket in columns.layout.buckets:
        offset_T = torch.arange(bucket.width + columns.room, device=device) - bucket.width
        kept_NT = (offset_T >= -kept_N[bucket.places, None]) & (offset_T < 0)
        new_NT = (offset_T >= gap_N[bucket.places, None]) & (offset_T < opened.filled)
        masks.append(torch.where(kept_NT | new_NT, 0.0, -torch.inf).to(dtype).flatten())
    return torch.cat(masks)


def _causal(mask_NT: Tensor, first: int, new: int) -> Tensor:
    """[N, T] -> [N, 1, n, T] for queries whose own columns begin at `first`."""
    mask_NnT = mask_NT[:, None].repeat(1, new, 1)
    newest_Nnn = mask_NnT[:, :, first : first + new]
    newest_Nnn.masked_fill_(torch.ones(new, new, dtype=torch.bool, device=mask_NT.device).triu(1), -torch.inf)
    # A padding query would have no column at all and produce NaN; let it see its own (unused) column.
    newest_Nnn.diagonal(dim1=1, dim2=2).zero_()
    return mask_NnT[:, None]


def _attention(query_Ngnd: Tensor, key_N1Td: Tensor, value_N1Td: Tensor, mask_N1nT: Tensor, scaling: float) -> Tensor:
    """[N, g, n, d]; the g query heads of a lane share its K and V."""
    group, new = query_Ngnd.shape[1:3]
    if new == 1:  # heads as queries: one pass over K and V
        query, key, value = query_Ngnd.transpose(1, 2), key_N1Td, value_N1Td
    else:
        query, key, value = query_Ngnd, key_N1Td.expand(-1, group, -1, -1), value_N1Td.expand(-1, group, -1, -1)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_N1nT, scale=scaling)
    return out.transpose(1, 2) if new == 1 else out
