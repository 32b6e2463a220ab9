"""Latent memory outside our engine: its state on a transformers cache, its readout in a hook on each attention layer.

What is remembered belongs to one context, so it lives on that context's cache and never on a module: the hooks leave
every forward pass over another cache bit for bit as it was. A hook sees an attention block only from outside, therefore
it computes the block's attention a second time, now with the log-sum-exp that the readout needs.

Shapes: B batch, H KV heads, Q query heads, K kept tokens, L context tokens, T cached tokens, n new tokens, d head_dim,
r rotary dim, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import Cache, PreTrainedModel, QuantizedCache

from indexmem.errors import UserError
from indexmem.eviction.memory.attention import partial_attention
from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryState
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.models.attention import attention_layers, layer_number, output_weight
from indexmem.models.projection import rotate, unrotate

ATTRIBUTE = "latent_memory"  # of a cache

Rotary = tuple[Tensor, Tensor]  # cos and sin [B, n, r]
PreRopeQuery = Callable[[nn.Module, Tensor], Tensor]  # attention module, its input [B, n, D] -> queries [B, Q, n, d]


@dataclass
class CacheMemory:
    """What a cache carries, by the cache's layer. Tensors and a name only, so that caches can be copied."""

    owner: str
    states: dict[int, MemoryState] = field(default_factory=dict)
    # Of layers whose heads keep different numbers of tokens: what was evicted and yet lies in the cache, [B, H, L].
    evicted_BHL: dict[int, Tensor] = field(default_factory=dict)

    def forget(self, layer: int) -> None:
        """Nothing has left this layer."""
        self.states.pop(layer, None)
        self.evicted_BHL.pop(layer, None)


class AttachedMemories:
    """A backbone's memories at work on caches: writes what leaves them, completes the attention over what stays."""

    def __init__(self, memories: MemoryStack, pre_rope_query: PreRopeQuery) -> None:
        self._memories = memories
        self._pre_rope_query = pre_rope_query
        self._owner = uuid4().hex  # tells states of this stack from those of others hooked to the same model
        self._handles: dict[nn.Module, RemovableHandle] = {}

    def attach(self, model: PreTrainedModel) -> None:
        """Hook the model's layers with full attention; those hooked already stay as they are."""
        for module in attention_layers(model):
            if module not in self._handles:
                self._handles[module] = module.register_forward_hook(self._complete, with_kwargs=True)

    def detach(self) -> None:
        """Remove all hooks. Caches keep their states, which are no longer read."""
        while self._handles:
            self._handles.popitem()[1].remove()

    def write(
        self,
        module: nn.Module,
        cache: Cache,
        key_BHLd: Tensor,
        value_BHLd: Tensor,
        leaves_BHL: Tensor,
        rotary: Rotary,
        stay: bool = False,
    ) -> None:
        """Put a fresh state on the cache that holds what each head of this layer loses of its context.

        With `stay` its K and V remain in the cache, and are not attended to. Raises UserError for a quantized cache.
        """
        if isinstance(cache, QuantizedCache):
            raise UserError("Latent memory attends to K and V as they are: use a DynamicCache, not a QuantizedCache.")
        memory = self._memory_of(module).to(key_BHLd.device)
        tables = (table.to(key_BHLd.device) for table in rotary)
        key = unrotate(key_BHLd, *tables) if memory.shape.rotary == "pre" else key_BHLd
        weight = output_weight(module) if memory.shape.value == "model" else None
        held = getattr(cache, ATTRIBUTE, None)
        if held is None or held.owner != self._owner:
            held = CacheMemory(self._owner)
            setattr(cache, ATTRIBUTE, held)
        held.forget(_index(module))
        held.states[_index(module)] = memory.write(None, Evicted(key, value_BHLd, leaves_BHL, weight))
        if stay:
            held.evicted_BHL[_index(module)] = leaves_BHL

    def _complete(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Tensor, Any]
    ) -> tuple[Tensor, Any] | None:
        """Forward hook: the layer's output with the memory's part; None leaves the output untouched."""
        cache: Any = kwargs.get("past_key_values")
        held = getattr(cache, ATTRIBUTE, None)
        if held is None or held.owner != self._owner or _index(module) not in held.states:
            return None
        hidden_BnD: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        key_BHTd, value_BHTd = cache.layers[_index(module)].keys, cache.layers[_index(module)].values
        new, cached = hidden_BnD.shape[1], key_BHTd.shape[2]
        if new == cached:  # the cache was reset and is filled anew: what was remembered is another context
            held.forget(_index(module))
            return None
        memory, state = self._memory_of(module), held.states[_index(module)]
        pre_BQnd = self._pre_rope_query(module, hidden_BnD)
        cos_B1nr, sin_B1nr = (table.unsqueeze(1) for table in kwargs["position_embeddings"])
        post_BQnd = rotate(pre_BQnd, cos_B1nr, sin_B1nr)
        sees = torch.ones(new, cached, dtype=torch.bool, device=key_BHTd.device).tril(cached - new)
        evicted_BHL = held.evicted_BHL.get(_index(module))
        if evicted_BHL is not None:
            evicted_BHT = nn.functional.pad(evicted_BHL, (0, cached - evicted_BHL.shape[-1]))
            sees = sees & ~evicted_BHT[:, :, None, None]
        scaling: float = module.scaling  # type: ignore[assignment]
        attended = partial_attention(post_BQnd, key_BHTd, value_BHTd, scaling, sees)
        readout = memory.read(state, pre_BQnd if memory.shape.rotary == "pre" else post_BQnd, *attended)
        flat_BnV = readout.output_BQnd.transpose(1, 2).flatten(2).to(hidden_BnD.dtype)
        completed_BnD = module.o_proj(flat_BnV)  # type: ignore[operator]
        if readout.residual_BnD is not None:
            completed_BnD = completed_BnD + readout.residual_BnD.to(completed_BnD.dtype)
        return completed_BnD, *output[1:]

    def _memory_of(self, module: nn.Module) -> LatentMemory:
        layer = layer_number(module)
        assert layer is not None, "only layers with full attention are hooked"
        return self._memories[layer]  # type: ignore[return-value]


def _index(module: nn.Module) -> int:
    """The module's number among all layers, as caches count."""
    return int(module.layer_idx)  # type: ignore[arg-type]
