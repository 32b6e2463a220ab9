"""A batch of compressed caches, ragged over rows and layers, in static buffers.

Each layer holds the kept K and V of every row left-padded to that layer's longest row, followed by room for new tokens;
a boolean mask says which columns exist. New tokens of all rows share a column, so a decode step writes one slice.
Padding and validity live here and nowhere on the model.
Shapes: R rows, H KV heads, g query heads per KV head, K kept tokens (padded), N room for new tokens, n new tokens now.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from indexmem.engine.memories import RowMemories
from indexmem.eviction.context import RowCache

# (row, layer, keys [H, T, d], values [H, T, d]) of a row's tokens, without padding -> which of them stay, [H, K].
Choose = Callable[[int, int, Tensor, Tensor], Tensor]


class RaggedCache(Cache):
    """The cache that the model writes to (`past_key_values`) and attends with (`kv_view`)."""

    def __init__(self, rows: list[RowCache], room: int) -> None:
        super().__init__(layers=[])
        first = rows[0].keys_HLd[0]
        self.filled = 0  # columns of new tokens in use
        self.width = [max(row.kept_HK[layer].shape[1] for row in rows) for layer in range(len(rows[0].kept_HK))]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for layer, width in enumerate(self.width):
            shape = (len(rows), first.shape[0], width + room, first.shape[-1])
            keys, values = first.new_zeros(shape), first.new_zeros(shape)
            for r, row in enumerate(rows):
                kept_keys, kept_values = row.kept_tokens(layer)
                keys[r, :, width - kept_keys.shape[1] : width] = kept_keys
                values[r, :, width - kept_keys.shape[1] : width] = kept_values
            self.keys.append(keys)
            self.values.append(values)
        # Layers in which every row keeps as many tokens share one validity mask: the layer's profile.
        self.profile = [tuple(row.kept_HK[layer].shape[1] for row in rows) for layer in range(len(self.width))]
        self.valid_RT: dict[tuple[int, ...], Tensor] = {}
        self._mark_kept()
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self.memories = RowMemories(rows, first.device)
        self._rotary: tuple[Tensor, Tensor] | None = None  # cos and sin of the new tokens' positions

    def extend(self, valid_Rn: Tensor) -> None:
        """Open columns for the next n tokens of each row; False marks a row's padding. Call before the model."""
        new = valid_Rn.shape[1]
        for profile, valid_RT in self.valid_RT.items():
            begin = max(profile) + self.filled
            valid_RT[:, begin : begin + new] = valid_Rn
        self.filled += new
        self._masks.clear()

    def update(self, key_states, value_states, layer_idx, cache_kwargs=None):  # type: ignore[no-untyped-def]
        """transformers' hook: store the new K and V [R, H, n, d] of a layer, return all of it."""
        self._rotary = None if cache_kwargs is None else (cache_kwargs["cos"], cache_kwargs["sin"])
        end = self.width[layer_idx] + self.filled
        begin = end - key_states.shape[2]
        self.keys[layer_idx][:, :, begin:end] = key_states
        self.values[layer_idx][:, :, begin:end] = value_states
        return self.keys[layer_idx][:, :, :end], self.values[layer_idx][:, :, :end]

    def attend(self, layer: int, query_BQLd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float) -> Tensor:
        """softmax(q k^T scaling + mask) v over valid columns, causal among the new tokens: [R, n, Q, d].

        The g query heads of a KV head are folded into the query axis, so K and V are never repeated. Rows with a
        latent memory then get its part.
        """
        rows, heads, new, dim = query_BQLd.shape
        kv_heads = key_BHTd.shape[1]
        folded = query_BQLd.reshape(rows, kv_heads, (heads // kv_heads) * new, dim)
        mask = self._mask(layer, new, heads // kv_heads)
        out = F.scaled_dot_product_attention(folded, key_BHTd, value_BHTd, attn_mask=mask, scale=scaling)
        out_RQnd = out.reshape(rows, heads, new, dim)
        if self.memories.any_in(layer):
            logits = (folded @ key_BHTd.transpose(-1, -2)).float().mul_(scaling).masked_fill_(~mask, float("-inf"))
            lse_RQn = logits.logsumexp(-1).reshape(rows, heads, new)
            out_RQnd = self.memories.read(layer, query_BQLd, out_RQnd, lse_RQn, self._rotary)
        return out_RQnd.transpose(1, 2)

    def _mask(self, layer: int, new: int, group: int) -> Tensor:
        """[R, 1, g * n, T], made once per step for all layers of one profile."""
        profile = self.profile[layer]
        if profile not in self._masks:
            end = self.width[layer] + self.filled
            valid_R1nT = self.valid_RT[profile][:, None, None, :end].repeat(1, 1, new, 1)
            if new > 1:
                future = torch.ones(new, new, dtype=torch.bool, device=valid_R1nT.device).triu(1)
                valid_R1nT[..., end - new :] &= ~future
            # A padding query would have no column at all and produce NaN; let it see its own (unused) column.
            own = torch.arange(new, device=valid_R1nT.device)
            valid_R1nT[:, :, own, end - new + own] = True
            self._masks[profile] = valid_R1nT.repeat(1, 1, group, 1)
        return self._masks[profile]

    def repack(self, choose: Choose) -> None:
        """Keep of each row and layer what `choose` says; new tokens then have the room behind that again.

        Called row by row, layers in order. No row may grow, so that the buffers still suffice.
        """
        profiles = []
        for layer, (keys, values) in enumerate(zip(self.keys, self.values)):
            valid_RT = self.valid_RT[self.profile[layer]][:, : self.width[layer] + self.filled]
            kept = []
            for row, valid_T in enumerate(valid_RT):
                columns = valid_T.nonzero().squeeze(1)
                key_HTd, value_HTd = keys[row][:, columns], values[row][:, columns]
                index = choose(row, layer, key_HTd, value_HTd)[..., None].expand(-1, -1, keys.shape[-1])
                kept.append((key_HTd.gather(1, index), value_HTd.gather(1, index)))
            profiles.append(tuple(key.shape[1] for key, _ in kept))
            width = max(profiles[-1])
            for row, (key_HKd, value_HKd) in enumerate(kept):
                keys[row, :, width - key_HKd.shape[1] : width] = key_HKd
                values[row, :, width - key_HKd.shape[1] : width] = value_HKd
        self.profile, self.width, self.filled = profiles, [max(profile) for profile in profiles], 0
        self._mark_kept()
        self._masks.clear()

    def lengths(self) -> Tensor:
        """Cached tokens of each row in each layer, [layers, R]."""
        return torch.stack([self.valid_RT[profile].sum(1) for profile in self.profile])

    def newest_valid(self, layer: int, new: int) -> Tensor:
        """Which of the n newest columns hold a real token, [R, n]."""
        end = self.width[layer] + self.filled
        return self.valid_RT[self.profile[layer]][:, end - new : end]

    @property
    def free_columns(self) -> int:
        """New tokens that fit into every layer."""
        return min(keys.shape[2] - width for keys, width in zip(self.keys, self.width)) - self.filled

    def _mark_kept(self) -> None:
        """Validity of a cache without new tokens."""
        columns_T = torch.arange(max(keys.shape[2] for keys in self.keys), device=self.keys[0].device)
        self.valid_RT = {}
        for profile, width in zip(self.profile, self.width):
            kept_R = torch.tensor(profile, device=columns_T.device)
            self.valid_RT[profile] = (columns_T >= width - kept_R[:, None]) & (columns_T < width)

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these (finished answers free their memory)."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.valid_RT = {profile: valid[rows] for profile, valid in self.valid_RT.items()}
        self._masks.clear()
        self.memories.select(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.width[layer_idx] + self.filled
