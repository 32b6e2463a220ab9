"""Attention to all lanes of a layer by one kernel, which reads their tokens and no padding; masks are not needed."""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.engine.columns import Columns
from indexmem.engine.opened import Opened
from indexmem.kernels.decode_attention import WIDEST, decode_attention, store_newest


class FusedAttention:
    """See LaneAttention; nothing here depends on earlier steps."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def extend(self, new: int) -> None:
        pass

    def store(self, columns: Columns, stored: tuple[Tensor, Tensor], key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        store_newest(key_RHnd, value_RHnd, *stored, columns.begin_N, columns.kept_N, self._opened.count_1)

    def attend(
        self, columns: Columns, stored: tuple[Tensor, Tensor], query_RQnd: Tensor, scaling: float, wants_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        opened = self._opened
        lanes = columns.begin_N, columns.kept_N, opened.gap_R, opened.count_1
        longest = columns.longest + opened.reach_after(0)
        return decode_attention(query_RQnd, *stored, *lanes, scaling, longest)


def try_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel takes this head_dim, and gives one token's value back; raises what a launch raises."""
    if head_dim > WIDEST:
        return False
    one = torch.ones(1, dtype=torch.long, device=device)
    stored = torch.ones(1, head_dim, dtype=dtype, device=device)
    output_RQnd, _ = decode_attention(stored[None, None], stored, stored, one - 1, one - 1, one - 1, one, 1.0, 1)
    return bool((output_RQnd == 1).all())
