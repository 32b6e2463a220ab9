"""Latent memory (paper section 3.2): what is evicted leaves a trace of fixed size, read back at every later query.

A memory has slow weights (this module, trained) and fast weights (its state, written online). Writing takes the tokens
that leave the cache; reading takes a query, the attention output over what stayed, and that attention's log-sum-exp.

Shapes: B rows, H KV heads, Q query heads, g = Q/H, L tokens, n queries, d head_dim, D model width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from indexmem.config.modules import MemoryConfig
from indexmem.models.geometry import Geometry

DEFAULT_SLOTS = 63  # 63 (2 d + 2) <= 64 (2 d): within 64 tokens' worth of K and V for any head_dim >= 63


@dataclass(frozen=True)
class MemoryShape:
    """Everything that fixes a memory's parameters and behaviour, stored in its checkpoint."""

    features: str
    fusion: str
    input: str
    rotary: str
    value: str
    dim: int
    decay: float
    write_strength: float
    gate_bias: float

    @classmethod
    def of(cls, config: MemoryConfig, geometry: Geometry) -> MemoryShape:
        default = DEFAULT_SLOTS if config.features == "slots" else max(1, geometry.attention_width // 8)
        return cls(**config.model_dump(exclude={"bases", "dim"}), dim=config.dim or default)


@dataclass(frozen=True)
class MemoryState:
    """Fast weights of some rows, fp32; every tensor begins with the row axis."""

    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def select(self, rows: Tensor) -> MemoryState:
        return MemoryState({name: tensor[rows] for name, tensor in self.tensors.items()})

    @classmethod
    def stack(cls, states: Sequence[MemoryState]) -> MemoryState:
        return cls({name: torch.cat([state.tensors[name] for state in states]) for name in states[0].tensors})


@dataclass(frozen=True)
class Evicted:
    """A cache's tokens and which of them leave it, per KV head."""

    key_BHLd: Tensor  # before or after RoPE, as the memory's shape says
    value_BHLd: Tensor
    leaves_BHL: Tensor  # bool: this head evicts this token; all others are ignored
    output_weight_DV: Tensor | None = None  # the layer's o_proj weight, for memories of value `model`


@dataclass(frozen=True)
class Readout:
    """Attention output with the memory's part, and what is to be added after the output projection, if anything."""

    output_BQnd: Tensor
    residual_BnD: Tensor | None = None


class LatentMemory(nn.Module):
    """One layer's memory."""

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        super().__init__()
        self.shape = shape
        self.kv_heads, self.group, self.head_dim = geometry.kv_heads, geometry.group, geometry.head_dim
        self.hidden_size = geometry.hidden_size
        self.scaling = geometry.scaling

    @abstractmethod
    def write(self, state: MemoryState | None, evicted: Evicted) -> MemoryState:
        """Fold evicted tokens into the state (None: the first write). Old content decays by lambda, new weighs eta."""

    @abstractmethod
    def read(self, state: MemoryState, query_BQnd: Tensor, output_BQnd: Tensor, lse_BQn: Tensor) -> Readout:
        """The attention output over the kept tokens, completed by the memory.

        `lse` is log sum exp of the kept tokens' logits, fp32. A state that holds nothing changes no bit.
        """

    def observe(self, query_BQnd: Tensor) -> None:
        """Update running statistics of the data (training only)."""

    def state_floats(self) -> int:
        """fp32 numbers in the state of one row, from an actual write of one token."""
        weight = next(iter([*self.parameters(), *self.buffers()]))
        token = torch.zeros(1, self.kv_heads, 1, self.head_dim, device=weight.device)
        present = torch.ones(1, self.kv_heads, 1, dtype=torch.bool, device=weight.device)
        projection = torch.zeros(self.hidden_size, self.kv_heads * self.group * self.head_dim, device=weight.device)
        return self.write(None, Evicted(token, token, present, projection)).nbytes // 4


def fuse_by_mass(output: Tensor, lse: Tensor, memory_output: Tensor, memory_lse: Tensor) -> Tensor:
    """Softmax over kept and evicted together: o = (1-w) o_K + w m, w = Z_E / (Z_K + Z_E) = sigmoid(log Z_E - log Z_K).

    Shapes [..., d] and [...]. A memory of no mass (log Z_E = -inf) gives w = 0 and returns `output` exactly.
    """
    weight = torch.sigmoid(memory_lse - lse)[..., None]
    return (1 - weight) * output + weight * memory_output
