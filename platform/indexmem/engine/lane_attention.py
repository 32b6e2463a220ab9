"""New tokens are written into a batch's buffers, and attend to all of their lane's: by a kernel where one runs.

Shapes: R rows, H KV heads, g query heads per KV head, Q = H g, n new tokens now, C columns in storage, d head_dim; of a
bucket: N lanes, T columns, W of them up to the end of the kept tokens.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.engine.lanes import Columns, Opened
from indexmem.kernels.dispatch import can_run

StoredLayer = tuple[Tensor, Tensor]  # K and V of a layer, [C, d] each


class LaneAttention(Protocol):
    """One for all layers of a batch; to be made anew when rows leave."""

    def extend(self, new: int) -> None:
        """`new` columns were opened."""

    def store(self, columns: Columns, stored: StoredLayer, key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        """Write the newest tokens of a layer."""

    def attend(
        self, columns: Columns, stored: StoredLayer, query_RQnd: Tensor, scaling: float, wants_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output [R, Q, n, d] over each lane's tokens, causal among the newest n, and log-sum-exp [R, Q, n] in fp32.

        Log-sum-exp is only promised where wanted, and there only for rows with a latent memory.
        """


def lane_attention(opened: Opened, device: torch.device, dtype: torch.dtype, head_dim: int) -> LaneAttention:
    """The switch point: by the kernel where it runs, else by torch."""
    return FusedAttention(opened) if kernel_runs(device, dtype, head_dim) else BucketAttention(opened)


@cache
def kernel_runs(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether attention goes through the kernel: where kernels can run and a first launch of this one works.

    A launch that fails (Triton needs a C compiler, and kernels for this GPU) costs speed, not the run: it is warned of.
    """
    if not can_run(torch.empty(0, dtype=dtype, device=device)):
        return False
    try:
        return _try_kernel(device, dtype, head_dim)
    except Exception as reason:  # of Triton's compiler, the C compiler or the driver: no common class
        warnings.warn(f"attention while decoding goes through torch and is slow: {reason!r}", stacklevel=2)
        return False


def _try_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel takes this head_dim, and gives one token's value back; raises what a launch raises."""
    from indexmem.kernels.decode_attention import WIDEST, decode_attention

    if head_dim > WIDEST:
        return False
    one = torch.ones(1, dtype=torch.long, device=device)
    stored = torch.ones(1, head_dim, dtype=dtype, device=device)
    output_RQnd, _ = decode_attention(stored[None, None], stored, stored, one - 1, one - 1, one - 1, one, 1.0, 1)
    return bool((output_RQnd == 1).all())


class FusedAttention:
    """By one kernel for all lanes of a layer, which reads their tokens and no padding, and needs no masks."""

    def __init__(self, opened: Opened) -> None:
        from indexmem.kernels.decode_attention import decode_attention, store_newest  # need Triton

        self._opened, self._store_newest, self._decode_attention = opened, store_newest, decode_attention

    def extend(self, new: int) -> None:
        pass

    def store(self, columns: Columns, stored: StoredLayer, key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        self._store_newest(key_RHnd, value_RHnd, *stored, columns.begin_N, columns.kept_N, self._opened.count_1)

    def attend(
        self, columns: Columns, stored: StoredLayer, query_RQnd: Tensor, scaling: float, wants_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        opened = self._opened
        lanes = columns.begin_N, columns.kept_N, opened.gap_R, opened.count_1
        longest = columns.longest + opened.reach_after(0)
        return self._decode_attention(query_RQnd, *stored, *lanes, scaling, longest)


class BucketAttention:
    """By torch: one call for each bucket of lanes, with masks for what its lanes do not hold.

    Masks are additive: 0 for a token, -inf for none. They are made when a layer first attends, lie in the order of
    storage, and are then opened column by column.
    """

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

    def store(self, columns: Columns, stored: StoredLayer, key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        if columns not in self._newest:
            where = self._newest[columns] = (columns.room_N[:, None] + self._offset_n).flatten()
            if columns in self._mask_C:  # then these are no padding: that comes first
                self._mask_C[columns].index_fill_(0, where, 0.0)
        for new_RHnd, stored_Cd in zip((key_RHnd, value_RHnd), stored):
            stored_Cd.index_copy_(0, self._newest[columns], new_RHnd.reshape(-1, new_RHnd.shape[-1]))

    def attend(
        self, columns: Columns, stored: StoredLayer, query_RQnd: Tensor, scaling: float, wants_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        rows, heads, new, dim = query_RQnd.shape
        lanes = rows * columns.layout.heads
        query_Ngnd = columns.layout.into_buckets(query_RQnd.reshape(lanes, -1, new, dim))
        reach = self._opened.reach_after(0)
        outputs, sums = [], []
        for bucket, mask_N1nT, *views in zip(
            columns.layout.buckets,
            self._masks_of(columns, new, query_RQnd.dtype),
            *(columns.views(stored_Cd) for stored_Cd in stored),
        ):
            query = query_Ngnd[bucket.span]
            key, value = (view_NTd[:, None, : bucket.width + reach] for view_NTd in views)
            outputs.append(_attention(query, key, value, mask_N1nT, scaling))
            if wants_lse and bucket.remembers:
                logits = (query.flatten(1, 2) @ key[:, 0].transpose(-1, -2)).float().mul_(scaling)
                sums.append(logits.unflatten(1, query.shape[1:3]).add_(mask_N1nT).logsumexp(-1))
            elif wants_lse:
                sums.append(query.new_zeros(query.shape[:3], dtype=torch.float32))  # never read
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
    kept_N = columns.layout.into_buckets(columns.kept_N)
    gap_N = columns.layout.into_buckets(opened.gap_R.repeat_interleave(columns.layout.heads))
    masks = []
    for bucket in columns.layout.buckets:
        offset_T = torch.arange(bucket.width + columns.room, device=device) - bucket.width
        kept_NT = (offset_T >= -kept_N[bucket.span, None]) & (offset_T < 0)
        new_NT = (offset_T >= gap_N[bucket.span, None]) & (offset_T < opened.filled)
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
