"""kvpress' training-free scorers, computed by its own code on our taps.

Shapes: B batch, H KV heads, L context tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace

from kvpress import ScorerPress, SnapKVPress
from torch import Tensor, nn

from indexmem.eviction.context import RowCache
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.decode_scorer import (
    KeyScorer,
    WindowAttention,
    key_difference,
    key_norm,
)
from indexmem.eviction.methods.on_device import OnDevice
from indexmem.models.attention import LayerTap, RotaryEmbedding


class KvpressMethod(EvictionMethod):
    """A kvpress scorer applied to a tap."""

    def __init__(self, press: ScorerPress) -> None:
        self.press = press
        self.min_context = max(getattr(press, "window_size", 0), getattr(press, "n_sink", 0)) + 1

    def score(self, tap: LayerTap) -> Tensor:
        kwargs = {"position_embeddings": (tap.cos_BLr, tap.sin_BLr)}
        module = _with_rotary(tap.module, tap.rotary)
        with OnDevice():
            return self.press.score(module, tap.hidden_BLD, tap.key_BHLd, tap.value_BHLd, None, kwargs)


class Knorm(KvpressMethod):
    def decode_scorer(self, rows: Sequence[RowCache]) -> KeyScorer:
        return KeyScorer(key_norm)


class KeyDiff(KvpressMethod):
    def decode_scorer(self, rows: Sequence[RowCache]) -> KeyScorer:
        return KeyScorer(key_difference)


class SnapKV(KvpressMethod):
    press: SnapKVPress

    def decode_scorer(self, rows: Sequence[RowCache]) -> WindowAttention:
        return WindowAttention(self.press.window_size, self.press.kernel_size)


class TOVA(KvpressMethod):
    per_head = False

    def decode_scorer(self, rows: Sequence[RowCache]) -> WindowAttention:
        return WindowAttention(1, across_heads=True)


class PyramidKV(KvpressMethod):
    """SnapKV scores with kvpress' pyramid of layer budgets: more tokens below, fewer above."""

    def kept(self, tokens: int, target: float, layer: int, layers: int) -> int:
        if layers == 1:  # kvpress gives a single layer what the lowest of many would get, nearly twice its budget
            return max(1, round(target))
        press = copy.copy(self.press)
        press.compression_ratio = 1 - target / tokens
        stand_in = SimpleNamespace(layer_idx=layer, config=SimpleNamespace(num_hidden_layers=layers))
        return press.get_layer_budget(stand_in, tokens)

    def count(self, tokens: int, target: float, layer: int, layers: int) -> int:
        # Lower layers may have no room for tokens on top: the pyramid is that of the whole budget.
        return self.kept(tokens, min(tokens, target + self.extra_tokens), layer, layers)


def _with_rotary(module: nn.Module, rotary: RotaryEmbedding) -> nn.Module:
    """A shallow copy of an attention module that knows the rotary embedding, as kvpress' scorers expect.

    kvpress sets the attribute on the model itself and leaves it there; the copy keeps the backbone untouched.
    """
    twin = copy.copy(module)
    twin.__dict__["rotary_emb"] = rotary
    return twin
