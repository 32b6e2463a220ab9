"""kvpress' training-free scorers, computed by its own code on our taps.

Shapes: B batch, H KV heads, Q query heads, L context tokens, W of them in a window at the end, d head_dim.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from types import SimpleNamespace

import torch
from kvpress import ExpectedAttentionPress, LagKVPress, PyramidKVPress, ScorerPress, SnapKVPress, TOVAPress
from kvpress.utils import get_prerope_query_states
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import rotate_half

from indexmem.eviction.context import RowCache
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.decode_scorer import (
    KeyScorer,
    WindowAttention,
    key_difference,
    key_norm,
)
from indexmem.eviction.methods.on_device import OnDevice
from indexmem.eviction.ranking import ABOVE_WINDOW, with_window
from indexmem.eviction.selection import PerHead
from indexmem.models.attention import LayerTap, RotaryEmbedding


@singledispatch
def window_by_age(press: ScorerPress, scores_BHL: Tensor) -> Tensor:
    """A press' scores with the recent window that it protects, if any, ranked by age: kvpress gives it one score."""
    return scores_BHL


@window_by_age.register
def _(press: SnapKVPress, scores_BHL: Tensor) -> Tensor:
    return with_window(scores_BHL, press.window_size)


@window_by_age.register
def _(press: LagKVPress, scores_BHL: Tensor) -> Tensor:
    """Its window is what has no lag after it; its first tokens come before that."""
    first, lag, length = press.n_sink, press.lag_size, scores_BHL.shape[-1]
    if length < first + 2 * lag:  # scored by recency alone
        return scores_BHL
    scores_BHL = with_window(scores_BHL, lag + (length - first) % lag)
    scores_BHL[..., :first] = ABOVE_WINDOW
    return scores_BHL


class KvpressMethod(EvictionMethod):
    """A kvpress scorer applied to a tap."""

    in_fp32 = False  # True: it gets K and V in fp32; in bf16 a third of the tokens tie, and ties would choose

    def __init__(self, press: ScorerPress) -> None:
        self.press = press
        self.min_context = max(getattr(press, "window_size", 0), getattr(press, "n_sink", 0)) + 1

    def score(self, tap: LayerTap) -> Tensor:
        if self.in_fp32:
            tap = replace(tap, key_BHLd=tap.key_BHLd.float(), value_BHLd=tap.value_BHLd.float())
        kwargs = {"position_embeddings": (tap.cos_BLr, tap.sin_BLr)}
        module = _with_rotary(tap.module, tap.rotary)
        with OnDevice():
            # Else presses make it of the hidden states, with queries of their own; of a text too short, they say so.
            attention = None
            if self.last_queries and self.last_queries <= tap.key_BHLd.shape[2]:
                attention = last_queries_attention(tap, self.last_queries)
            scores_BHL = self.press.score(module, tap.hidden_BLD, tap.key_BHLd, tap.value_BHLd, attention, kwargs)
        return window_by_age(self.press, scores_BHL)


class KeysAndValues(KvpressMethod):
    """A scorer that reads K and V alone."""

    last_queries = 0
    in_fp32 = True


class Knorm(KeysAndValues):
    def decode_scorer(self, rows: Sequence[RowCache]) -> KeyScorer:
        return KeyScorer(key_norm)


class KeyDiff(KeysAndValues):
    def decode_scorer(self, rows: Sequence[RowCache]) -> KeyScorer:
        return KeyScorer(key_difference)


class OfWindow(KvpressMethod):
    """A scorer by the attention of the last tokens."""

    press: SnapKVPress

    def __init__(self, press: SnapKVPress) -> None:
        super().__init__(press)
        self.last_queries = press.window_size


class SnapKV(OfWindow):
    def decode_scorer(self, rows: Sequence[RowCache]) -> WindowAttention:
        return WindowAttention(self.press.window_size, self.press.kernel_size)


class TOVA(KvpressMethod):
    last_queries = 1
    per_head = False

    def __init__(self, press: TOVAPress) -> None:
        super().__init__(press)
        self.min_context = 2  # the last token, and one to rank

    def decode_scorer(self, rows: Sequence[RowCache]) -> WindowAttention:
        return WindowAttention(1, across_heads=True)


class PyramidKV(OfWindow):
    """SnapKV scores with kvpress' pyramid of layer budgets: more tokens below, fewer above."""

    def __init__(self, press: PyramidKVPress) -> None:
        super().__init__(press)
        self.selection = Pyramid(press=press)


@dataclass(frozen=True)
class Pyramid(PerHead):
    """The best tokens of each head, as many as kvpress gives to its layer."""

    press: PyramidKVPress = field(kw_only=True)
    only: tuple[int, int] | None = None  # one layer by itself: its number, and how many layers there are

    @property
    def slack(self) -> float:
        return 1.0  # each layer's budget is rounded to the nearest token

    def count(self, tokens: int, target: float, layer: int, layers: int) -> int:
        layer, layers = self.only or (layer, layers)
        if layers == 1:  # kvpress gives a single layer what the lowest of many would get, nearly twice its budget
            return max(1, round(target))
        press = copy.copy(self.press)
        press.compression_ratio = 1 - target / tokens
        stand_in = SimpleNamespace(layer_idx=layer, config=SimpleNamespace(num_hidden_layers=layers))
        return press.get_layer_budget(stand_in, tokens)

    def of_layer(self, layer: int, layers: int) -> Pyramid:
        return replace(self, only=(layer, layers))


class ExpectedAttention(KvpressMethod):
    in_fp32 = True


class ExpectedAttentionOnDevice(ExpectedAttentionPress):
    """kvpress' scorer in fp32, its mean rotation made on the device: kvpress copies it from the host in every layer."""

    def get_query_statistics(self, module: nn.Module, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean [B, Q, d] and covariance [B, Q, d, d] of the queries after the sinks, turned to future positions."""
        query_BQLd = get_prerope_query_states(module, hidden_states[:, self.n_sink :]).float()
        mean_BQ1d = query_BQLd.mean(dim=2, keepdim=True)
        covariance_BQdd = None
        if self.use_covariance:
            centred_BQLd = query_BQLd - mean_BQ1d
            covariance_BQdd = centred_BQLd.mT @ centred_BQLd / query_BQLd.shape[2]
        return self.apply_avg_rope(module, mean_BQ1d.squeeze(2), covariance_BQdd, hidden_states.shape[1])

    def apply_avg_rope(
        self, module: nn.Module, mu: Tensor, cov: Tensor | None, q_len: int
    ) -> tuple[Tensor, Tensor | None]:
        """Mean [B, Q, d] and covariance [B, Q, d, d] of the queries, turned to the positions after `q_len`."""
        future_1P = torch.arange(q_len, q_len + self.n_future_positions, device=mu.device)[None]
        cos_1d, sin_1d = (table.mean(dim=1) for table in module.rotary_emb(mu, future_1P))  # type: ignore[operator]
        unit_dd = torch.eye(mu.shape[-1], dtype=mu.dtype, device=mu.device)
        turned_dd = unit_dd * cos_1d + rotate_half(unit_dd) * sin_1d  # row vectors times this are turned
        return mu @ turned_dd, None if cov is None else turned_dd.T @ (cov @ turned_dd)


def last_queries_attention(tap: LayerTap, window: int) -> Tensor:
    """Causal attention of the last `window` queries, fp32 [B, Q, W, L]."""
    heads, length = tap.key_BHLd.shape[1:3]
    query_BQWd = tap.query_BQLd[:, :, -window:].float()
    group = query_BQWd.shape[1] // heads
    folded_BHwd = query_BQWd.unflatten(1, (heads, group)).flatten(2, 3)  # no copies of keys for the query heads
    # kvpress' scale, whatever the backbone's is.
    logits_BHwL = folded_BHwd @ tap.key_BHLd.float().transpose(-1, -2) / tap.key_BHLd.shape[-1] ** 0.5
    future_WW = torch.ones(window, window, dtype=torch.bool, device=tap.key_BHLd.device).triu(1)
    logits_BHwL[..., length - window :].masked_fill_(future_WW.repeat(group, 1), float("-inf"))
    return logits_BHwL.softmax(dim=-1).unflatten(2, (group, window)).flatten(1, 2)


def _with_rotary(module: nn.Module, rotary: RotaryEmbedding) -> nn.Module:
    """A shallow copy of an attention module that knows the rotary embedding, as kvpress' scorers expect.

    kvpress sets the attribute on the model itself and leaves it there; the copy keeps the backbone untouched.
    """
    twin = copy.copy(module)
    twin.__dict__["rotary_emb"] = rotary
    return twin
