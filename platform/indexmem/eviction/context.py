"""A prefilled context, and what one cell keeps of it.

Layers are those with full attention, which alone are evicted from; what a model's sliding-window layers hold is the
same for every cell.
Shapes: H KV heads, L context tokens, K kept tokens (may differ between layers), W tokens within a window, d head_dim,
r rotary dim, G score rows of an indexer, i its dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

from torch import Tensor, nn

from indexmem.eviction.kept import lengths_of, oldest_first
from indexmem.eviction.memory.base import LatentMemory, MemoryState


@dataclass(frozen=True)
class Window:
    """What a sliding-window layer holds of a context: its latest tokens."""

    layer: int  # among all layers of the model
    size: int  # tokens that a query attends to, itself included
    keys_HWd: Tensor  # after RoPE
    values_HWd: Tensor

    @classmethod
    def of(cls, layer: int, size: int, keys_HLd: Tensor, values_HLd: Tensor) -> Self:
        """The tokens that the next one attends to besides itself: W = min(L, size - 1)."""
        first = max(0, keys_HLd.shape[1] - size + 1)
        # Cloned: a slice would keep all L tokens alive.
        return cls(layer, size, keys_HLd[:, first:].clone(), values_HLd[:, first:].clone())

    @property
    def nbytes(self) -> int:
        return self.keys_HWd.nbytes + self.values_HWd.nbytes


@dataclass
class ContextCache:
    """K and V of one context, held once for all cells."""

    tokens: int
    keys_HLd: list[Tensor] = field(default_factory=list)  # one per layer, after RoPE
    values_HLd: list[Tensor] = field(default_factory=list)
    cos_Lr: Tensor | None = None  # rotary tables of the context's positions
    sin_Lr: Tensor | None = None
    modules: list[nn.Module] = field(default_factory=list)  # the attention modules, for their output projections
    windows: list[Window] = field(default_factory=list)  # one per sliding-window layer, in layer order

    @property
    def layers(self) -> int:
        return len(self.keys_HLd)

    @property
    def element_size(self) -> int:
        return self.keys_HLd[0].element_size()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the full cache."""
        full = sum(k.nbytes + v.nbytes for k, v in zip(self.keys_HLd, self.values_HLd))
        return full + sum(window.nbytes for window in self.windows)


class IndexerKeys(NamedTuple):
    """All that an indexer needs of a layer's tokens to rank them again."""

    key_Li: Tensor
    token_GL: Tensor | None = None  # what each token says alone, where the indexer has such a term


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
    representation_step: int = 0  # bytes of the smallest change to that
    indexer_bytes: int = 0
    holds_kept_only: bool = False  # K and V are [H, K, d]: nothing else was ever computed
    # Of all context tokens, by layer that owns an indexer: for compression during decoding.
    indexer_keys: Mapping[int, IndexerKeys] | None = None
    windows: Sequence[Window] = ()  # the context's own

    def lengths(self, layer: int) -> list[int]:
        """Tokens that each KV head of a layer keeps."""
        return self._lengths_LH[layer]

    @cached_property
    def _lengths_LH(self) -> list[list[int]]:
        return lengths_of(self.kept_HK, self.counts_H)

    def oldest_first(self, layer: int) -> Tensor:
        """Kept positions of a layer, every head's last one in the last column."""
        return oldest_first(self.kept_HK[layer], None if self.counts_H is None else self.counts_H[layer])

    @property
    def kv_bytes(self) -> int:
        """Bytes of what is kept of K and V in all layers, from tensor sizes."""
        if self.representation_bytes is not None:
            return self.representation_bytes + self.window_bytes
        kept = sum(
            sum(self.lengths(layer)) * (keys.shape[-1] * keys.element_size() + values.shape[-1] * values.element_size())
            for layer, (keys, values) in enumerate(zip(self.keys_HLd, self.values_HLd))
        )
        return kept + self.window_bytes

    @property
    def window_bytes(self) -> int:
        """Bytes of the sliding-window layers, which no eviction changes."""
        return sum(window.nbytes for window in self.windows)

    @property
    def memory_bytes(self) -> int:
        return sum(state.nbytes for _, state in self.memories or ())
