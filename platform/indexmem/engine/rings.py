"""Sliding-window layers of a decode batch: a ring of each row's latest tokens, which no eviction touches.

A row's tokens are numbered one after another (its padding is not), and token r lies in slot r mod S. With S at least
window - 1 + the most tokens fed at once, a new token only replaces one that no query attends to any more. All numbers
lie on the device, so that a step can be captured as a CUDA graph.
Shapes: R rows, H KV heads, g query heads per KV head, Q = H g, n new tokens now, W context tokens within the window,
T = S + 1 slots (the last one takes padding), d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.engine.lanes import whole_columns
from indexmem.eviction.context import RowCache
from indexmem.models.sequence_attention import window_mask

NEVER = -(2**40)  # number of an empty slot's token: outside every window


class WindowRings:
    """K and V of all sliding-window layers; without such layers, nothing."""

    def __init__(self, rows: Sequence[RowCache], at_once: int) -> None:
        """`at_once`: the most tokens that a call of `extend` may bring."""
        first = rows[0].keys_HLd[0]
        self.layers = tuple(window.layer for window in rows[0].windows)  # among all layers of the model
        self.keys_RHTd: dict[int, Tensor] = {}
        self.values_RHTd: dict[int, Tensor] = {}
        if not self.layers:
            return
        self._window = rows[0].windows[0].size
        slots = whole_columns(self._window + at_once)
        for number, layer in enumerate(self.layers):
            held = [row.windows[number] for row in rows]
            self.keys_RHTd[layer] = _ring([window.keys_HWd for window in held], slots)
            self.values_RHTd[layer] = _ring([window.values_HWd for window in held], slots)
        self._next_R1 = torch.tensor([[row.windows[0].keys_HWd.shape[1]] for row in rows], device=first.device)
        slot_T = torch.arange(slots, device=first.device)
        self._token_RT = torch.where(slot_T < self._next_R1, slot_T, NEVER)  # which token lies in each slot
        self._slot_Rn = self._token_RT[:, :0]
        self._mask_R1nT = first.new_zeros(0)

    def extend(self, valid_Rn: Tensor) -> None:
        """Make room for the next n tokens of each row; False marks a row's padding, before its tokens."""
        if not self.layers:
            return
        spare = self._token_RT.shape[1] - 1
        assert valid_Rn.shape[1] <= spare + 1 - self._window, "a query's window would be overwritten"
        token_Rn = self._next_R1 + valid_Rn.cumsum(1) - 1  # of padding: the newest token's, for a query to see any
        self._slot_Rn = torch.where(valid_Rn, token_Rn % spare, spare)
        self._token_RT.scatter_(1, self._slot_Rn, torch.where(valid_Rn, token_Rn, NEVER))
        self._next_R1 += valid_Rn.sum(1, keepdim=True)
        seen_RnT = window_mask(token_Rn, self._token_RT, self._window)
        dtype = self.keys_RHTd[self.layers[0]].dtype
        self._mask_R1nT = torch.zeros(seen_RnT.shape, dtype=dtype, device=seen_RnT.device)
        self._mask_R1nT = self._mask_R1nT.masked_fill_(~seen_RnT, -torch.inf)[:, None]

    def widen(self, at_once: int) -> None:
        """Let `extend` bring so many tokens at a time from now on."""
        if not self.layers or self._window + at_once <= self._token_RT.shape[1]:
            return
        slots = whole_columns(self._window + at_once)
        token_RT, spare = self._token_RT, slots - 1
        slot_RT = torch.where(token_RT >= 0, token_RT % spare, spare)  # distinct: fewer consecutive numbers than slots
        self._token_RT = token_RT.new_full((len(token_RT), slots), NEVER).scatter_(1, slot_RT, token_RT)
        self._token_RT[:, spare] = NEVER
        for held in (self.keys_RHTd, self.values_RHTd):
            for layer, old_RHTd in held.items():
                rows, heads, _, dim = old_RHTd.shape
                index_RHTd = slot_RT[:, None, :, None].expand_as(old_RHTd)
                held[layer] = old_RHTd.new_zeros(rows, heads, slots, dim).scatter_(2, index_RHTd, old_RHTd)

    @property
    def nbytes(self) -> int:
        """Bytes of K and V, empty slots included."""
        return sum(held.nbytes for held in (*self.keys_RHTd.values(), *self.values_RHTd.values()))

    def store(self, layer: int, key_RHnd: Tensor, value_RHnd: Tensor) -> None:
        """Put a layer's new K and V into the slots opened last."""
        index_RHnd = self._slot_Rn[:, None, :, None].expand_as(key_RHnd)
        self.keys_RHTd[layer].scatter_(2, index_RHnd, key_RHnd)
        self.values_RHTd[layer].scatter_(2, index_RHnd, value_RHnd)

    def attend(self, layer: int, query_RQnd: Tensor, scaling: float) -> Tensor:
        """Attention of the new tokens' queries within their windows: [R, n, Q, d]."""
        key_RHTd, value_RHTd = self.keys_RHTd[layer], self.values_RHTd[layer]
        rows, heads, new, dim = query_RQnd.shape
        group = heads // key_RHTd.shape[1]
        folded = query_RQnd.reshape(rows, -1, group * new, dim)
        mask = self._mask_R1nT if new == 1 else self._mask_R1nT.repeat(1, 1, group, 1)
        output = F.scaled_dot_product_attention(folded, key_RHTd, value_RHTd, attn_mask=mask, scale=scaling)
        return output.reshape(rows, heads, new, dim).transpose(1, 2)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        if not self.layers:
            return
        self.keys_RHTd = {layer: keys[rows] for layer, keys in self.keys_RHTd.items()}
        self.values_RHTd = {layer: values[rows] for layer, values in self.values_RHTd.items()}
        self._next_R1, self._token_RT = self._next_R1[rows], self._token_RT[rows]


def _ring(held_HWd: Sequence[Tensor], slots: int) -> Tensor:
    """[R, H, T, d] with each row's tokens in its first slots."""
    heads, _, dim = held_HWd[0].shape
    ring_RHTd = held_HWd[0].new_zeros(len(held_HWd), heads, slots, dim)
    for ring_HTd, tokens_HWd in zip(ring_RHTd, held_HWd):
        ring_HTd[:, : tokens_HWd.shape[1]] = tokens_HWd
    return ring_RHTd
