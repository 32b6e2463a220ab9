"""Queries, keys and values of an attention module one at a time, and rotary embedding, for every supported family.

Shapes: T tokens, D model width, N heads of the projected kind, d head_dim, r rotary dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FUSED_ORDER: Mapping[str, int] = MappingProxyType({"q": 0, "k": 1, "v": 2})  # rows of a joint `qkv_proj` (phi3)


def attention_inputs(module: nn.Module, part: Literal["q", "k", "v"], input_TD: Tensor) -> Tensor:
    """One projection [N, T, d] of a layer's normed input: before RoPE, after the module's q/k norm if any."""
    head_dim: int = module.head_dim  # type: ignore[assignment]
    projected = _project(module, part, input_TD).unflatten(-1, (-1, head_dim))
    norm = getattr(module, f"{part}_norm", None)
    return (projected if norm is None else norm(projected)).transpose(0, 1)


def rotate(x_NTd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor) -> Tensor:
    """Rotary embedding, x cos + rot(x) sin with rot((a, b)) = (-b, a); dimensions beyond r pass through."""
    rotated, passed = x_NTd.split([cos_Tr.shape[-1], x_NTd.shape[-1] - cos_Tr.shape[-1]], dim=-1)
    first, second = rotated.chunk(2, dim=-1)
    return torch.cat((rotated * cos_Tr + torch.cat((-second, first), dim=-1) * sin_Tr, passed), dim=-1)


def unrotate(x_BHLd: Tensor, cos_BLr: Tensor, sin_BLr: Tensor) -> Tensor:
    """Inverse of rotary embedding, in fp32.

    RoPE maps x to x cos + rot(x) sin with rot((a, b)) = (-b, a), i.e. a rotation scaled by s^2 = cos^2 + sin^2 (s is
    the attention scaling of long-context RoPE variants; 1 otherwise). Its inverse is (x cos - rot(x) sin) / s^2.
    Dimensions beyond r (partial rotary) pass through. Strides are those of x; there are no intermediates of its size.
    """
    out_BHLd = torch.empty_like(x_BHLd, dtype=torch.float32)
    width = cos_BLr.shape[-1]
    cos, sin = cos_BLr[:, None].float(), sin_BLr[:, None].float()
    squared = cos.square() + sin.square()
    cos_a, cos_b = (cos / squared).chunk(2, dim=-1)
    sin_a, sin_b = (sin / squared).chunk(2, dim=-1)
    a, b = x_BHLd[..., :width].chunk(2, dim=-1)
    out_a, out_b = out_BHLd[..., :width].chunk(2, dim=-1)
    torch.mul(a, cos_a, out=out_a).addcmul_(b, sin_a)
    torch.mul(b, cos_b, out=out_b).addcmul_(a, sin_b, value=-1)
    out_BHLd[..., width:] = x_BHLd[..., width:]
    return out_BHLd


def _project(module: nn.Module, part: str, input_TD: Tensor) -> Tensor:
    fused: nn.Linear | None = getattr(module, "qkv_proj", None)
    if fused is None:
        return getattr(module, f"{part}_proj")(input_TD)
    config = module.config
    kv_width = config.num_key_value_heads * module.head_dim  # type: ignore[operator,union-attr]
    widths = [fused.out_features - 2 * kv_width, kv_width, kv_width]
    return F.linear(input_TD, fused.weight.split(widths)[FUSED_ORDER[part]])
