"""xKV (arXiv 2503.18893): neighbouring layers share one low-rank basis of their keys, and one of their values.

A different axis of compression: no token is evicted, every token is stored with fewer numbers. A budget is therefore
one of bytes, those of its tokens, and nothing is exact: xKV treats the first (sink) tokens like all others.
Shapes: H KV heads, L context tokens, d head_dim, N columns (layers * H * d of a group), r rotary dim.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from indexmem.errors import UserError
from indexmem.eviction.context import ContextCache, RowCache
from indexmem.eviction.lowrank import affordable_ranks, layers_to_matrix, matrix_to_layers, principal_axes, truncate
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.params import check_number
from indexmem.models.attention import LayerTap
from indexmem.models.projection import unrotate


class XKV(EvictionMethod):
    """Cross-layer SVD of the keys before RoPE and of the values, in groups of `group` layers (the last may be smaller).

    `key_share` is the keys' part of the ranks; 0.4 is the authors' 512 : 768 for keys : values. Keys are rotated again
    after they are restored. A budget of all tokens stores the full cache as it is.
    """

    def __init__(self, group: int = 4, key_share: float = 0.4) -> None:
        """Raises UserError for a group without layers or a share that leaves keys or values nothing."""
        check_number("group", group, least=1, example=4, unit="layers")
        if not isinstance(key_share, float) or not 0 < key_share < 1:
            raise UserError(f"key_share={key_share!r} must lie between 0 and 1. Example: key_share: 0.4")
        self.group = group
        self.key_share = key_share
        self._axes: list[tuple[Tensor, Tensor]] = []  # of keys and values, per group: all ratios of a context use them
        self._axes_of: weakref.ref[ContextCache] | None = None

    def score(self, tap: LayerTap) -> Tensor:
        """Zeros: no token goes before another."""
        return tap.key_BHLd.new_zeros(tap.key_BHLd.shape[:3])

    def compress(self, context: ContextCache, rankings: Sequence[Tensor] | None, target: float) -> RowCache:
        """All tokens, restored from factors that take at most the bytes of `target` tokens in each group.

        Raises ValueError when the context is too short for any rank to fit.
        """
        heads, tokens, head_dim = context.keys_HLd[0].shape
        if target >= tokens:
            return super().compress(context, rankings, target)
        ratio = 1 - target / tokens
        return self.restored(
            context,
            [affordable_ranks(tokens, len(g) * heads * head_dim, ratio, self.key_share) for g in self._groups(context)],
        )

    @torch.inference_mode()
    def restored(self, context: ContextCache, ranks: Sequence[tuple[int, int]]) -> RowCache:
        """The cache as attention sees it once each group has been cut to its ranks (of keys, of values)."""
        heads, tokens, head_dim = context.keys_HLd[0].shape
        dtype = context.keys_HLd[0].dtype
        keys_HLd: list[Tensor] = []
        values_HLd: list[Tensor] = []
        stored_bytes = step_bytes = 0
        for layers, axes, (key_rank, value_rank) in zip(self._groups(context), self._shared_axes(context), ranks):
            keys_LN, values_LN = self._matrices(context, layers)
            keys = truncate(keys_LN, axes[0], key_rank, dtype)
            values = truncate(values_LN, axes[1], value_rank, dtype)
            stored_bytes += keys.nbytes + values.nbytes
            step_bytes += sum(keys_LN.shape) * dtype.itemsize  # a rank
            restored_HLd = matrix_to_layers(keys.restore(), heads, head_dim)
            keys_HLd += [_rotate(layer, context).to(dtype) for layer in restored_HLd]
            values_HLd += [layer.to(dtype) for layer in matrix_to_layers(values.restore(), heads, head_dim)]
        everything_HL = torch.arange(tokens, device=keys_HLd[0].device).expand(heads, tokens)
        return RowCache(
            keys_HLd,
            values_HLd,
            [everything_HL] * context.layers,
            representation_bytes=stored_bytes,
            representation_step=step_bytes,
            windows=context.windows,
        )

    def _groups(self, context: ContextCache) -> list[range]:
        starts = range(0, context.layers, self.group)
        return [range(start, min(start + self.group, context.layers)) for start in starts]

    def _matrices(self, context: ContextCache, layers: range) -> tuple[Tensor, Tensor]:
        """Keys before RoPE and values of some layers, [L, N] each."""
        keys = layers_to_matrix([_unrotate(context.keys_HLd[layer], context) for layer in layers])
        return keys, layers_to_matrix([context.values_HLd[layer] for layer in layers])

    def _shared_axes(self, context: ContextCache) -> list[tuple[Tensor, Tensor]]:
        # The costly part, the same for every ratio: kept for as long as the next cells are of the same context.
        if self._axes_of is None or self._axes_of() is not context:
            dtype = context.keys_HLd[0].dtype
            matrices = (self._matrices(context, layers) for layers in self._groups(context))
            self._axes = [
                (principal_axes(keys).to(dtype), principal_axes(values).to(dtype)) for keys, values in matrices
            ]
            self._axes_of = weakref.ref(context)
        return self._axes


def _unrotate(key_HLd: Tensor, context: ContextCache) -> Tensor:
    return unrotate(key_HLd[None], *_tables(context))[0]


def _rotate(key_HLd: Tensor, context: ContextCache) -> Tensor:
    """RoPE is the inverse of the inverse rotation: the angle negated, the scaling s turned into 1 / s."""
    cos_1Lr, sin_1Lr = _tables(context)
    square_1Lr = cos_1Lr.square() + sin_1Lr.square()
    return unrotate(key_HLd[None], cos_1Lr / square_1Lr, -sin_1Lr / square_1Lr)[0]


def _tables(context: ContextCache) -> tuple[Tensor, Tensor]:
    assert context.cos_Lr is not None, "a prefilled context has rotary tables"
    assert context.sin_Lr is not None, "a prefilled context has rotary tables"
    return context.cos_Lr.float()[None], context.sin_Lr.float()[None]
