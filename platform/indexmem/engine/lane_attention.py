"""Who writes new tokens into a batch's buffers and attends to them: a kernel where one runs, torch elsewhere.

Shapes: R rows, H KV heads, Q query heads, n new tokens, C places in storage, d head_dim.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from indexmem.engine.bucket_attention import BucketAttention
from indexmem.engine.columns import Columns
from indexmem.engine.opened import Opened
from indexmem.kernels.dispatch import can_run

Stored = tuple[Tensor, Tensor]  # K and V of a layer, [C, d] each


class LaneAttention(Protocol):
    """One for all layers of a batch; to be made anew when rows leave."""

    def extend(self, new: int) -> None:
        """`new` columns were opened."""

    def store(self, columns: Columns, stored: Stored, key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        """Write the newest tokens of a layer."""

    def attend(
        self, columns: Columns, stored: Stored, query_RQnd: Tensor, scaling: float, wants_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output [R, Q, n, d] over each lane's tokens, causal among the newest n, and log-sum-exp [R, Q, n] in fp32.

        Log-sum-exp is only promised where wanted, and there only for rows with a latent memory.
        """


def lane_attention(opened: Opened, device: torch.device, dtype: torch.dtype, head_dim: int) -> LaneAttention:
    """The switch point: by the kernel where it runs, else by torch."""
    if not kernel_runs(device, dtype, head_dim):
        return BucketAttention(opened)
    from indexmem.engine.fused_attention import FusedAttention  # needs Triton

    return FusedAttention(opened)


@cache
def kernel_runs(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether attention goes through the kernel: where kernels can run and a first launch of this one works.

    A launch that fails (Triton needs a C compiler, and kernels for this GPU) costs speed, not the run: it is warned of.
    """
    if not can_run(torch.empty(0, dtype=dtype, device=device)):
        return False
    from indexmem.engine.fused_attention import try_kernel

    try:
        return try_kernel(device, dtype, head_dim)
    except Exception as reason:  # of Triton's compiler, the C compiler or the driver: no common class
        warnings.warn(f"attention while decoding goes through torch and is slow: {reason!r}", stacklevel=2)
        return False
