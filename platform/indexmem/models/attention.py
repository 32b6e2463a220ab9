"""The attention function that backbones run with, and the taps on it.

Loaded with `attn_implementation="indexmem"`, a backbone behaves as with sdpa. Two keywords, passed through
`model(..., layer_tap=..., kv_view=...)` and so bound to one call and never to the model's modules, change that:

- `layer_tap(tap)` is called in each layer with what attention sees, before attention runs;
- `kv_view.attend(layer, query, key, value, scaling)` replaces attention (compressed, ragged caches).

Shapes: B batch, L tokens, Q query heads, H KV heads, d head_dim, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION_NAME = "indexmem"


class KVView(Protocol):
    """A cache that attends by itself."""

    def attend(self, layer: int, query_BQLd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float) -> Tensor:
        """Attention output [B, L, Q, d]."""


@dataclass(frozen=True)
class LayerTap:
    """What one attention layer sees during a forward pass."""

    layer: int
    module: nn.Module
    hidden_BLD: Tensor  # attention input, after the layer's input norm
    query_BQLd: Tensor  # after RoPE
    key_BHLd: Tensor  # after RoPE
    value_BHLd: Tensor
    cos_BLr: Tensor  # rotary tables, r <= d
    sin_BLr: Tensor
    scaling: float  # the backbone's own logit scale
    rotary: nn.Module  # the model's rotary embedding: (x, position_ids) -> cos, sin

    def prefix(self, tokens: int) -> LayerTap:
        """What the layer would have seen of the first `tokens` tokens alone (causality: the same values)."""
        return replace(
            self,
            hidden_BLD=self.hidden_BLD[:, :tokens],
            query_BQLd=self.query_BQLd[:, :, :tokens],
            key_BHLd=self.key_BHLd[:, :, :tokens],
            value_BHLd=self.value_BHLd[:, :, :tokens],
            cos_BLr=self.cos_BLr[:, :tokens],
            sin_BLr=self.sin_BLr[:, :tokens],
        )

    def rows(self, index_R: Tensor, tokens: int) -> LayerTap:
        """Some sequences of the batch, all of `tokens` real tokens, without their padding."""
        one_table = self.cos_BLr.shape[0] == 1  # tables of batch 1 serve all rows
        return replace(
            self,
            hidden_BLD=self.hidden_BLD[index_R],
            query_BQLd=self.query_BQLd[index_R],
            key_BHLd=self.key_BHLd[index_R],
            value_BHLd=self.value_BHLd[index_R],
            cos_BLr=self.cos_BLr if one_table else self.cos_BLr[index_R],
            sin_BLr=self.sin_BLr if one_table else self.sin_BLr[index_R],
        ).prefix(tokens)

    @cached_property
    def query_pre_BQLd(self) -> Tensor:
        """Query before RoPE (after any q_norm), fp32: the rotation undone, so that it holds for every family."""
        return unrotate(self.query_BQLd, self.cos_BLr, self.sin_BLr)

    @cached_property
    def key_pre_BHLd(self) -> Tensor:
        """Key before RoPE (after any k_norm), fp32."""
        return unrotate(self.key_BHLd, self.cos_BLr, self.sin_BLr)


def unrotate(x_BHLd: Tensor, cos_BLr: Tensor, sin_BLr: Tensor) -> Tensor:
    """Inverse of rotary embedding, in fp32.

    RoPE maps x to x cos + rot(x) sin with rot((a, b)) = (-b, a), i.e. a rotation scaled by s^2 = cos^2 + sin^2 (s is
    the attention scaling of long-context RoPE variants; 1 otherwise). Its inverse is (x cos - rot(x) sin) / s^2.
    Dimensions beyond r (partial rotary) pass through.
    """
    cos, sin = cos_BLr.float().unsqueeze(1), sin_BLr.float().unsqueeze(1)
    rotated, passed = x_BHLd.float().split([cos.shape[-1], x_BHLd.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = rotated.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return torch.cat(((rotated * cos - turned * sin) / (cos.square() + sin.square()), passed), dim=-1)


def indexmem_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    layer_tap: Callable[..., None] | None = None,
    kv_view: KVView | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention with taps; plain causal sdpa without them (right padding needs no mask under causality)."""
    if layer_tap is not None:
        layer_tap(module, query, key, value, scaling)
    if kv_view is not None:
        layer: int = module.layer_idx  # type: ignore[assignment]
        return kv_view.attend(layer, query, key, value, scaling), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling)


def register_attention() -> None:
    """Make `attn_implementation="indexmem"` known to transformers (idempotent)."""
    AttentionInterface.register(ATTENTION_NAME, indexmem_attention)


def attention_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The self-attention modules of a decoder, in layer order."""
    return [layer.self_attn for layer in model.get_decoder().layers]


def output_weight(module: nn.Module) -> Tensor:
    """Weight [D, Q d] of an attention module's output projection W_O."""
    projection: nn.Linear = module.o_proj  # type: ignore[assignment]
    return projection.weight


@contextmanager
def tapping(model: PreTrainedModel, visit: Callable[[LayerTap], None]) -> Iterator[dict[str, Any]]:
    """Visit every attention layer of the calls made inside.

    Yields the keywords to pass on: `with tapping(model, visit) as kwargs: model(ids, **kwargs)`. Query, key and value
    come from the attention function; hidden states and rotary tables from a pre-hook that is removed on exit.
    """
    inputs: dict[str, Any] = {}
    rotary = model.get_decoder().rotary_emb

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs["hidden"] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        inputs["rotary"] = kwargs["position_embeddings"]

    def tap(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> None:
        cos, sin = inputs["rotary"]
        layer: int = module.layer_idx  # type: ignore[assignment]
        visit(LayerTap(layer, module, inputs["hidden"], query, key, value, cos, sin, scaling, rotary))

    handles = [module.register_forward_pre_hook(remember, with_kwargs=True) for module in attention_layers(model)]
    try:
        yield {"layer_tap": tap}
    finally:
        for handle in handles:
            handle.remove()
