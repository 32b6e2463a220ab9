"""Causal attention that also gives its rows' log-sum-exp, as the kernels behind sdpa have it anyhow.

Shapes: B batch, Q query heads, H KV heads, L tokens, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend


def attend_with_lse(
    query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, scaling: float
) -> tuple[Tensor, Tensor] | None:
    """Output [B, L, Q, d] and natural log-sum-exp [B, Q, L] (fp32) of the scaled, causal logits.

    The kernel is the one that sdpa would take for these tensors; None if that one does not give the log-sum-exp.
    """
    attend = torch.ops.aten
    states = (query_BQLd, key_BHLd, value_BHLd)
    chosen = torch._fused_sdp_choice(*states, None, 0.0, True, scale=scaling, enable_gqa=True)
    if chosen == SDPBackend.CUDNN_ATTENTION.value:
        output, lse, *_ = attend._scaled_dot_product_cudnn_attention(*states, None, True, 0.0, True, scale=scaling)
    elif chosen != SDPBackend.FLASH_ATTENTION.value or (query_BQLd.is_cuda and query_BQLd.shape[-1] % 8):
        return None  # also where sdpa would pad the head's dims first
    elif query_BQLd.is_cuda:
        output, lse, *_ = attend._scaled_dot_product_flash_attention(*states, 0.0, True, scale=scaling)
    else:
        output, lse = attend._scaled_dot_product_flash_attention_for_cpu(*states, 0.0, True, scale=scaling)
    return output.transpose(1, 2), lse.reshape(query_BQLd.shape[:3])
