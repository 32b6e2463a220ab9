"""Any evicting method plus latent memory: what it evicts is written down instead of lost.

Shapes: H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from indexmem.config.modules import module_name
from indexmem.eviction.checkpoint import check_geometry, weights_hash
from indexmem.eviction.context import ContextCache, RowCache
from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryState
from indexmem.eviction.memory.stack import MemoryStack, memory_kind
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.decode_scorer import DecodeScorer
from indexmem.models.attention import LayerTap, output_weight
from indexmem.models.projection import unrotate
from indexmem.plugins.source import code_of, joined


class WithMemory(EvictionMethod):
    """`base` decides what is evicted; the memory trained for it remembers."""

    def __init__(self, base: EvictionMethod, base_name: str, folder: str, context: MethodContext) -> None:
        check_geometry(folder, context.geometry)
        self.base = base
        self.memories = MemoryStack.load_for(base_name, folder).eval().requires_grad_(False)
        self.state_bytes = self.memories.state_bytes
        self.memories.to(context.device)
        self.checkpoint = base.checkpoint + weights_hash(folder, module_name(base_name))
        self.code = joined(base.code, code_of(memory_kind(self.memories.shape.features)))
        self.min_context, self.last_queries = base.min_context, base.last_queries
        self.per_head, self.layers_alike, self.selection = base.per_head, base.layers_alike, base.selection

    def score(self, tap: LayerTap) -> Tensor:
        return self.base.score(tap)

    def indexer_bytes(self, lengths: Sequence[Sequence[int]], element_size: int) -> int:
        return self.base.indexer_bytes(lengths, element_size)

    def decode_scorer(self, rows: Sequence[RowCache]) -> DecodeScorer | None:
        return self.base.decode_scorer(rows)

    def compress(self, context: ContextCache, rankings: Sequence[Tensor] | None, target: float) -> RowCache:
        row = self.base.compress(context, rankings, target)
        memories: list[LatentMemory] = list(self.memories)  # type: ignore[arg-type]
        written = [
            (memory, write_evicted(memory, context, layer, row.kept_HK[layer])) for layer, memory in enumerate(memories)
        ]
        return replace(row, memories=written)


def write_evicted(memory: LatentMemory, context: ContextCache, layer: int, kept_HK: Tensor) -> MemoryState:
    """A fresh state holding all of a layer's context that is not kept."""
    key_HLd, value_HLd = context.keys_HLd[layer], context.values_HLd[layer]
    leaves_HL = torch.ones(key_HLd.shape[:2], dtype=torch.bool, device=key_HLd.device).scatter_(1, kept_HK, False)
    if memory.shape.rotary == "pre":
        assert context.cos_Lr is not None and context.sin_Lr is not None
        key_HLd = unrotate(key_HLd[None], context.cos_Lr[None], context.sin_Lr[None])[0]
    weight = output_weight(context.modules[layer]) if memory.shape.value == "model" else None
    return memory.write(None, Evicted(key_HLd[None], value_HLd[None], leaves_HL[None], weight))
