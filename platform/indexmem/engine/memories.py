"""The latent memories of a batch: rows that share slow weights are read together.

Shapes: R rows of the batch, r rows with a memory, Q query heads, n new tokens, d head_dim, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from indexmem.eviction.context import RowCache
from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryState
from indexmem.models.attention import attention_layers
from indexmem.models.projection import unrotate


@dataclass
class _Group:
    """Rows whose layer memory is the same module."""

    memory: LatentMemory
    rows: list[int]
    row_r: Tensor  # `rows` on the device
    state: MemoryState

    def __deepcopy__(self, memo: dict[int, Any]) -> _Group:
        """Slow weights are shared, what is remembered is not."""
        return _Group(self.memory, list(self.rows), self.row_r.clone(), deepcopy(self.state, memo))


class RowMemories:
    """Fast weights of a batch's rows, layer by layer."""

    def __init__(self, rows: Sequence[RowCache], device: torch.device) -> None:
        self._groups: list[list[_Group]] = []
        layers = len(rows[0].kept_HK)
        for layer in range(layers):
            members: dict[int, list[int]] = {}
            for index, row in enumerate(rows):
                if row.memories is not None:
                    members.setdefault(id(row.memories[layer][0]), []).append(index)
            groups = []
            for indices in members.values():
                pairs = [memories[layer] for i in indices if (memories := rows[i].memories) is not None]
                state = MemoryState.stack([state for _, state in pairs])
                groups.append(_Group(pairs[0][0], indices, torch.tensor(indices, device=device), state))
            self._groups.append(groups)
        self._residuals: dict[int, Tensor] = {}  # layer -> what its output projection is to be followed by

    def any_in(self, layer: int) -> bool:
        return bool(self._groups[layer])

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' states."""
        return sum(group.state.nbytes for groups in self._groups for group in groups)

    def read(
        self, layer: int, query_RQnd: Tensor, out_RQnd: Tensor, lse_RQn: Tensor, rotary: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Attention outputs with each row's memory part; rows without memory come back as they are."""
        out_RQnd = out_RQnd.clone()
        for group in self._groups[layer]:
            query = query_RQnd[group.row_r]
            if group.memory.shape.rotary == "pre":
                assert rotary is not None, "a memory before RoPE needs the rotary tables"
                cos, sin = (table if table.shape[0] == 1 else table[group.row_r] for table in rotary)
                query = unrotate(query, cos, sin)
            readout = group.memory.read(group.state, query, out_RQnd[group.row_r], lse_RQn[group.row_r])
            out_RQnd[group.row_r] = readout.output_BQnd
            if readout.residual_BnD is not None:
                residual = self._residuals.get(layer)
                if residual is None:
                    shape = (out_RQnd.shape[0], *readout.residual_BnD.shape[1:])
                    residual = self._residuals[layer] = readout.residual_BnD.new_zeros(shape)
                residual[group.row_r] = readout.residual_BnD
        return out_RQnd

    def write(self, layer: int, row: int, evicted: Callable[[LatentMemory], Evicted]) -> None:
        """Fold what a row evicts in a layer (batch 1) into its state; a row without memory forgets it."""
        for group in self._groups[layer]:
            if row in group.rows:
                number = group.rows.index(row)
                own = {name: tensor[number : number + 1].clone() for name, tensor in group.state.tensors.items()}
                grown = group.memory.write(MemoryState(own), evicted(group.memory))
                for name, tensor in group.state.tensors.items():
                    tensor[number : number + 1] = grown.tensors[name]

    def select(self, rows: Tensor) -> None:
        """Keep only these rows of the batch, renumbered in their order."""
        for groups in self._groups:
            for group in groups:
                where = (group.row_r[:, None] == rows[None]).nonzero()
                group.state, group.row_r = group.state.select(where[:, 0]), where[:, 1]
                group.rows = group.row_r.tolist()
            groups[:] = [group for group in groups if len(group.row_r)]

    @contextmanager
    def adding_residuals(self, model: PreTrainedModel) -> Iterator[None]:
        """Within: memories of value `model` add their part after each attention block's output projection."""

        def add(layer: int, module: nn.Module, args: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            residual = self._residuals.pop(layer, None)
            return output if residual is None else (output[0] + residual.to(output[0].dtype), *output[1:])

        in_model_space = any(group.memory.shape.value == "model" for groups in self._groups for group in groups)
        layers = attention_layers(model) if in_model_space else []
        handles = [module.register_forward_hook(partial(add, layer)) for layer, module in enumerate(layers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
