"""A prefilled context, and what one cell keeps of it.

Shapes: H KV heads, L context tokens, K kept tokens (may differ between layers), d head_dim, r rotary dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from indexmem.eviction.memory.base import LatentMemory, MemoryState


@dataclass
class ContextCache:
    """K and V of one context, held once for all cells."""

    tokens: int
    keys_HLd: list[Tensor] = field(default_factory=list)  # one per layer, after RoPE
    values_HLd: list[Tensor] = field(default_factory=list)
    cos_Lr: Tensor | None = None  # rotary tables of the context's positions
    sin_Lr: Tensor | None = None
    modules: list[nn.Module] = field(default_factory=list)  # the attention modules, for their output projections

    @property
    def layers(self) -> int:
        return len(self.keys_HLd)

    @property
    def element_size(self) -> int:
        return self.keys_HLd[0].element_size()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the full cache."""
        return sum(k.nbytes + v.nbytes for k, v in zip(self.keys_HLd, self.values_HLd))


@dataclass(frozen=True)
class RowCache:
    """One cell's compressed context: tensors to gather from, what to gather, and what remembers the rest."""

    keys_HLd: Sequence[Tensor]
    values_HLd: Sequence[Tensor]
    kept_HK: Sequence[Tensor]  # ascending positions, one [H, K] per layer
    # Tokens of each head, one [H] per layer, where heads keep different numbers: a head's entries of `kept_HK` beyond
    # its number repeat its last position.
    counts_H: Sequence[Tensor] | None = None
    memories: Sequence[tuple[LatentMemory, MemoryState]] | None = None  # one per layer
    representation_bytes: int | None = None  # for methods that store something other than the kept K and V
    indexer_bytes: int = 0
    holds_kept_only: bool = False  # K and V are [H, K, d]: nothing else was ever computed
    # Of all context tokens, one [L, i] per layer that owns an indexer: for compression during decoding.
    indexer_keys_Li: Mapping[int, Tensor] | None = None

    def lengths(self, layer: int) -> list[int]:
        """Tokens that each KV head of a layer keeps."""
        heads, kept = self.kept_HK[layer].shape
        return [kept] * heads if self.counts_H is None else self.counts_H[layer].tolist()

    def kept_tokens(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V of the kept tokens, [H, K, d] each; a head's tokens beyond its number repeat its last one."""
        keys, values = self.keys_HLd[layer], self.values_HLd[layer]
        if self.holds_kept_only:
            return keys, values
        index = self.kept_HK[layer][..., None].expand(-1, -1, keys.shape[-1])
        return keys.gather(1, index), values.gather(1, index)

    @property
    def kv_bytes(self) -> int:
        """Bytes of what is kept of K and V, from tensor sizes."""
        if self.representation_bytes is not None:
            return self.representation_bytes
        return sum(
            sum(self.lengths(layer)) * (keys.shape[-1] * keys.element_size() + values.shape[-1] * values.element_size())
            for layer, (keys, values) in enumerate(zip(self.keys_HLd, self.values_HLd))
        )

    @property
    def memory_bytes(self) -> int:
        return sum(state.nbytes for _, state in self.memories or ())
