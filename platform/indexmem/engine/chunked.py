"""A forward pass over a long context in chunks of tokens, layer by layer.

A layer finishes all chunks before the next one starts, so that its tap still shows the whole context while only one
chunk's activations of one layer are alive: what grows with the context is a layer's hidden states and queries, and K
and V. Values are those of a single pass up to the order of summation.
Shapes: B batch, L context tokens, C tokens of a chunk, T tokens that a chunk attends to, D model width, Q query heads,
H KV heads, d head_dim, r rotary dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from indexmem.models.attention import LayerTap, rotary_of, tapping
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import SLIDING, attention_kinds
from indexmem.models.sequence_attention import window_mask

Visit = Callable[[LayerTap], None]
SeeWindow = Callable[[int, Tensor, Tensor], None]


def forward_in_chunks(
    backbone: Backbone, ids_1L: Tensor, chunk: int, visit: Visit, see_window: SeeWindow | None = None
) -> None:
    """Run the decoder over a context, `chunk` tokens at a time.

    Each layer is shown as `tapping` would in a single pass: `visit` gets the tap of a layer with full attention,
    `see_window` number, keys and values of one with a sliding window.
    """
    decoder, config = backbone.model.get_decoder(), backbone.model.get_decoder().config
    hidden_1LD = decoder.embed_tokens(ids_1L)
    positions_1L = torch.arange(ids_1L.shape[1], device=ids_1L.device)[None]
    kinds = attention_kinds(config)
    tables = {kind: rotary_of(backbone.model, kind)(hidden_1LD, positions_1L) for kind in set(kinds)}
    spans = [slice(begin, begin + chunk) for begin in range(0, ids_1L.shape[1], chunk)]
    for layer, kind in zip(decoder.layers, kinds, strict=True):
        prefix = _Prefix(config.sliding_window if kind == SLIDING else None)
        taps: list[LayerTap] = []
        cos_1Lr, sin_1Lr = tables[kind]
        outputs = []
        with tapping(backbone.model, taps.append) as kwargs:
            for span in spans:
                output_1CD = layer(
                    hidden_1LD[:, span],
                    position_embeddings=(cos_1Lr[:, span], sin_1Lr[:, span]),
                    attention_mask=None,
                    position_ids=positions_1L[:, span],
                    kv_view=prefix,
                    **kwargs,
                )
                outputs.append(output_1CD)
        hidden_1LD = torch.cat(outputs, dim=1)
        if taps:
            visit(_joined(taps, prefix))
        elif see_window is not None:
            see_window(layer.self_attn.layer_idx, prefix.key_BHTd, prefix.value_BHTd)


class _Prefix:
    """K and V of one layer up to the present chunk, which attends to them."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.key_BHTd = self.value_BHTd = torch.empty(0)

    def attend(self, index: int, query_BQCd: Tensor, key_BHCd: Tensor, value_BHCd: Tensor, scaling: float) -> Tensor:
        """Causal attention of a chunk's queries over it and all that came before: [B, C, Q, d]."""
        if self.key_BHTd.numel():
            key_BHCd = torch.cat((self.key_BHTd, key_BHCd), dim=2)
            value_BHCd = torch.cat((self.value_BHTd, value_BHCd), dim=2)
        self.key_BHTd, self.value_BHTd = key_BHCd, value_BHCd
        total, new = self.key_BHTd.shape[2], query_BQCd.shape[2]
        first = 0 if self.window is None else max(0, total - new - self.window + 1)
        if self.window is None:
            mask: Tensor = causal_lower_right(new, total)
        else:
            position_T = torch.arange(first, total, device=query_BQCd.device)
            mask = window_mask(position_T[-new:], position_T, self.window)
        group = query_BQCd.shape[1] // self.key_BHTd.shape[1]
        key, value = (x[:, :, first:].repeat_interleave(group, dim=1) for x in (self.key_BHTd, self.value_BHTd))
        return F.scaled_dot_product_attention(query_BQCd, key, value, attn_mask=mask, scale=scaling).transpose(1, 2)


def _joined(taps: list[LayerTap], prefix: _Prefix) -> LayerTap:
    """One tap of a layer's consecutive chunks."""
    return replace(
        taps[0],
        hidden_BLD=torch.cat([tap.hidden_BLD for tap in taps], dim=1),
        query_BQLd=torch.cat([tap.query_BQLd for tap in taps], dim=2),
        key_BHLd=prefix.key_BHTd,
        value_BHLd=prefix.value_BHTd,
        cos_BLr=torch.cat([tap.cos_BLr for tap in taps], dim=1),
        sin_BLr=torch.cat([tap.sin_BLr for tap in taps], dim=1),
    )
