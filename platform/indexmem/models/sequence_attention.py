"""Attention of whole sequences: with its rows' log-sum-exp, which the kernels behind sdpa have anyway, or in a window.

In a window, the query at s attends to the keys at s - window < t <= s.

Shapes: B batch, Q = H g query heads, H KV heads, g query heads of a KV head, L query tokens, T key tokens, S queries of
a block, d head_dim.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

PROBE_TOKENS, PROBE_QUERY_HEADS, PROBE_HEADS = 64, 4, 2
# Keys from which cuDNN is worth its plan: it makes one for every new shape, which takes 0.1 s, and the batches of a
# training have new lengths in nearly every step. (Steps of windows of unequal length took five times as long with it.)
PLANNED_TOKENS = 8192
BLOCK_LOGITS = 2**25  # logits held at once: 128 MiB in fp32
QUERY_BLOCK = 1024  # queries that attend at once: bounds the mask at QUERY_BLOCK x (QUERY_BLOCK + window)
TOLERANCE = 1e-2  # of a probe's log-sum-exp, about 5: far above what rounding does, far below another convention


def attend_with_lse(
    query_BQLd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float, causal: bool = True
) -> tuple[Tensor, Tensor] | None:
    """Output [B, L, Q, d] and natural log-sum-exp [B, Q, L] (fp32) of the scaled logits; `causal` needs T = L.

    The kernel is the one that sdpa would take for these tensors; None if that one does not give the log-sum-exp, or, in
    this version of torch on this device, not as expected: it does so through functions that torch does not document.
    """
    states = (query_BQLd, key_BHTd, value_BHTd)
    kernel = torch._fused_sdp_choice(*states, None, 0.0, causal, scale=scaling, enable_gqa=True)
    if kernel == SDPBackend.CUDNN_ATTENTION.value and key_BHTd.shape[2] < PLANNED_TOKENS:
        kernel = SDPBackend.FLASH_ATTENTION.value
    dim = query_BQLd.shape[-1]
    if kernel not in (SDPBackend.CUDNN_ATTENTION.value, SDPBackend.FLASH_ATTENTION.value):
        return None
    if query_BQLd.is_cuda and dim % 8:  # sdpa would pad the head's dims first
        return None
    if not _as_expected(kernel, query_BQLd.device, query_BQLd.dtype, dim):
        return None
    return _attend(kernel, *states, scaling, causal)


def attend_in_blocks(
    query_BQLd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """What `attend_with_lse` gives, of any tensors: a block of queries at a time, in fp32 or wider."""
    wide = torch.promote_types(query_BQLd.dtype, torch.float32)
    query_BHgLd = query_BQLd.to(wide).unflatten(1, (key_BHTd.shape[1], -1))
    key_BH1dT, value_BH1Td = key_BHTd.to(wide)[:, :, None].mT, value_BHTd.to(wide)[:, :, None]
    batch, heads, length, _ = query_BQLd.shape
    block = max(1, BLOCK_LOGITS // (batch * heads * key_BHTd.shape[2]))
    position_T = torch.arange(key_BHTd.shape[2], device=query_BQLd.device)
    outputs, sums = [], []
    for start in range(0, length, block):
        logits_BHgST = query_BHgLd[:, :, :, start : start + block] @ key_BH1dT * scaling
        if causal:
            logits_BHgST.masked_fill_(position_T > position_T[start : start + block, None], -torch.inf)
        sums.append(logits_BHgST.logsumexp(-1))
        outputs.append(logits_BHgST.softmax(-1) @ value_BH1Td)
    output_BQLd = torch.cat(outputs, dim=3).flatten(1, 2).to(query_BQLd.dtype)
    return output_BQLd.transpose(1, 2), torch.cat(sums, dim=3).flatten(1, 2)


def window_mask(query_S: Tensor, key_T: Tensor, window: int) -> Tensor:
    """Which positions `key_T` a query at `query_S` attends to, bool [..., S, T]."""
    distance = query_S[..., :, None] - key_T[..., None, :]
    return (distance >= 0) & (distance < window)


def attend_in_window(
    query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, window: int, scaling: float, block: int = QUERY_BLOCK
) -> Tensor:
    """Output [B, L, Q, d] of attention in a window, in time and memory linear in L.

    The g query heads of a KV head are folded into the query axis, so K and V are never repeated.
    """
    heads, length = key_BHLd.shape[1:3]
    query_BHgLd = query_BQLd.unflatten(1, (heads, -1))
    group = query_BHgLd.shape[2]
    position_L = torch.arange(length, device=query_BQLd.device)
    blocks = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        first = max(0, start - window + 1)
        mask_ST = window_mask(position_L[start:stop], position_L[first:stop], window)
        output_BHsd = F.scaled_dot_product_attention(
            query_BHgLd[:, :, :, start:stop].flatten(2, 3),
            key_BHLd[:, :, first:stop],
            value_BHLd[:, :, first:stop],
            attn_mask=mask_ST.repeat(group, 1),
            scale=scaling,
        )
        blocks.append(output_BHsd.unflatten(2, (group, -1)))
    return torch.cat(blocks, dim=3).flatten(1, 2).transpose(1, 2)


def _attend(
    kernel: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool
) -> tuple[Tensor, Tensor]:
    attend, states = torch.ops.aten, (query, key, value)
    if kernel == SDPBackend.CUDNN_ATTENTION.value:
        output, lse, *_ = attend._scaled_dot_product_cudnn_attention(*states, None, True, 0.0, causal, scale=scaling)
    elif query.is_cuda:
        output, lse, *_ = attend._scaled_dot_product_flash_attention(*states, 0.0, causal, scale=scaling)
    else:
        output, lse = attend._scaled_dot_product_flash_attention_for_cpu(*states, 0.0, causal, scale=scaling)
    return output.transpose(1, 2), lse.reshape(query.shape[:3])


@cache
def _as_expected(kernel: int, device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Whether a small probe gives the natural log-sum-exp. A wrong one would teach wrongly without any error."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn((1, PROBE_TOKENS, heads, dim), generator=generator).to(device, dtype).transpose(1, 2)
        for heads in (PROBE_QUERY_HEADS, PROBE_HEADS, PROBE_HEADS)
    )  # the layout of projections
    scaling = dim**-0.5
    of_query_BQLd = key.double().repeat_interleave(PROBE_QUERY_HEADS // PROBE_HEADS, dim=1)
    logits_BQLL = scaling * query.double() @ of_query_BQLd.transpose(-1, -2)
    future_LL = torch.ones(PROBE_TOKENS, PROBE_TOKENS, dtype=torch.bool, device=device).triu(1)
    expected_BQL = logits_BQLL.masked_fill(future_LL, -torch.inf).logsumexp(-1)
    try:
        gap = (_attend(kernel, query, key, value, scaling, True)[1].double() - expected_BQL).abs().max().item()
    except RuntimeError as error:
        warnings.warn(f"attention's log-sum-exp is computed a second time: {error}", stacklevel=3)
        return False
    if gap > TOLERANCE:
        warnings.warn(f"attention's log-sum-exp is computed a second time: torch's is off by {gap:.3g}", stacklevel=3)
    return gap <= TOLERANCE
