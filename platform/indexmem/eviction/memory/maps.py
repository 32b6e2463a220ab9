"""Memories with learned feature maps: the paper's signed linear one, and positive softmax features.

    linear    M <- lambda M + eta sum_E phi(k) v^T,  b <- lambda b + eta sum_E phi(k)^2
              m(q) = phi(q)^T M / (phi(q)^2 . b + eps)                          (paper eqs. readout, write)
    positive  phi(x) = [softmax(W x), softmax(-W x)],  M as above,  z <- lambda z + eta sum_E phi(k)
              m(q) = phi(q)^T M / phi(q) . z,   log Z_E = log(phi(q) . z) + t(q)

    fuse      add: o + g m (paper) | mix: (1-g) o + g m | joint (positive only): (1-w) o + w m, w from the masses

What phi reads is an address: one per KV head (`head`), or one per token (`kv_flat`: all KV heads, queries averaged over
the group; `model`: all query heads, keys repeated). Values are attention outputs (`attn`), or outputs after W_O
(`model`), which are then added after the output projection.

Shapes: B rows, A addresses (H or 1), L tokens, p address width, F features, V value width, n queries, H KV heads,
g query heads per KV head, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryShape, MemoryState, Readout, fuse_by_mass
from indexmem.models.geometry import Geometry

EPSILON = 1e-6


class MapMemory(LatentMemory):
    """Addresses, values and fusion, shared by both kinds of features."""

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        super().__init__(shape, geometry)
        widths = {
            "head": geometry.head_dim,
            "kv_flat": geometry.kv_heads * geometry.head_dim,
            "model": geometry.attention_width,
        }
        self.width: int = widths[shape.input]
        if shape.fusion != "joint":
            self.gate = nn.Linear(self.width, 1)
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, shape.gate_bias)

    def address_keys(self, evicted: Evicted) -> tuple[Tensor, Tensor]:
        """Addresses [B, A, L, p] and which count [B, A, L]; a head that keeps a token adds nothing to its row."""
        key = evicted.key_BHLd.float() * evicted.leaves_BHL[..., None]
        if self.shape.input == "head":
            return key, evicted.leaves_BHL
        heads = key if self.shape.input == "kv_flat" else key.repeat_interleave(self.group, dim=1)
        return heads.transpose(1, 2).flatten(2)[:, None], evicted.leaves_BHL.any(dim=1, keepdim=True)

    def address_queries(self, query_BQnd: Tensor) -> Tensor:
        """[B, A, n', p]; n' = g n where every query head reads for itself, else n."""
        query_BHgnd = query_BQnd.float().unflatten(1, (self.kv_heads, self.group))
        if self.shape.input == "model":
            return query_BQnd.float().transpose(1, 2).flatten(2)[:, None]
        if self.shape.input == "kv_flat":
            return query_BHgnd.mean(2).transpose(1, 2).flatten(2)[:, None]
        return query_BHgnd.flatten(2, 3) if self.shape.value == "attn" else query_BHgnd.mean(2)

    def address_values(self, evicted: Evicted) -> Tensor:
        """[B, A, L, V]."""
        value = evicted.value_BHLd.float() * evicted.leaves_BHL[..., None]
        if self.shape.value == "attn":
            if self.shape.input == "head":
                return value
            return value.repeat_interleave(self.group, dim=1).transpose(1, 2).flatten(2)[:, None]
        assert evicted.output_weight_DV is not None, "values in model space need the output projection"
        weight_DHgd = evicted.output_weight_DV.float().unflatten(1, (self.kv_heads, self.group, self.head_dim))
        per_head_BHLD = torch.einsum("bhld,xhgd->bhlx", value, weight_DHgd)
        return per_head_BHLD if self.shape.input == "head" else per_head_BHLD.sum(1, keepdim=True)

    def fuse(self, readout_BAnV: Tensor, address_BAnp: Tensor, output_BQnd: Tensor) -> Readout:
        """add and mix, in attention or model space."""
        gate_BAn1 = torch.sigmoid(self.gate(address_BAnp))
        output = output_BQnd.float()
        if self.shape.value == "model":
            gate_Bn1 = gate_BAn1.mean(1)
            kept = output if self.shape.fusion == "add" else (1 - gate_Bn1[:, None]) * output
            return Readout(kept.to(output_BQnd.dtype), gate_Bn1 * readout_BAnV.sum(1))
        new = output.shape[2]
        if self.shape.input == "head":
            memory_BQnd = readout_BAnV.unflatten(2, (self.group, new)).flatten(1, 2)
            gate_BQn1 = gate_BAn1.unflatten(2, (self.group, new)).flatten(1, 2)
        else:
            memory_BQnd = readout_BAnV.squeeze(1).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            gate_BQn1 = gate_BAn1
        kept = output if self.shape.fusion == "add" else (1 - gate_BQn1) * output
        return Readout((kept + gate_BQn1 * memory_BQnd).to(output_BQnd.dtype))

    def accumulate(self, state: MemoryState | None, fresh: dict[str, Tensor]) -> MemoryState:
        """lambda * old + eta * new."""
        strengthened = {name: self.shape.write_strength * tensor for name, tensor in fresh.items()}
        if state is None:
            return MemoryState(strengthened)
        return MemoryState({n: self.shape.decay * state.tensors[n] + tensor for n, tensor in strengthened.items()})


class LinearMemory(MapMemory):
    """phi = Linear_theta: the paper's memory."""

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        super().__init__(shape, geometry)
        self.phi = nn.Linear(self.width, shape.dim, bias=False)

    def write(self, state: MemoryState | None, evicted: Evicted) -> MemoryState:
        address, present = self.address_keys(evicted)
        feature_BALF = self.phi(address) * present[..., None]
        outer_BAFV = feature_BALF.transpose(-1, -2) @ self.address_values(evicted)
        return self.accumulate(state, {"M": outer_BAFV, "b": feature_BALF.square().sum(2)})

    def read(self, state: MemoryState, query_BQnd: Tensor, output_BQnd: Tensor, lse_BQn: Tensor) -> Readout:
        address = self.address_queries(query_BQnd)
        feature_BAnF = self.phi(address)
        denominator_BAn1 = feature_BAnF.square() @ state.tensors["b"][..., None] + EPSILON
        return self.fuse(feature_BAnF @ state.tensors["M"] / denominator_BAn1, address, output_BQnd)


class PositiveMemory(MapMemory):
    """Softmax features per KV head: their inner product is a positive mass."""

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        super().__init__(shape, geometry)
        self.half_width = max(1, shape.dim // 2)
        self.weight_Hpf = nn.Parameter(torch.randn(self.kv_heads, self.width, self.half_width) * self.width**-0.5)
        self.mass_offset_Hp = nn.Parameter(torch.zeros(self.kv_heads, self.width))
        self.mass_bias_H = nn.Parameter(torch.zeros(self.kv_heads))

    def features(self, address_BHnp: Tensor) -> Tensor:
        logits_BHnf = address_BHnp @ self.weight_Hpf
        return torch.cat((logits_BHnf.softmax(-1), (-logits_BHnf).softmax(-1)), dim=-1)

    def write(self, state: MemoryState | None, evicted: Evicted) -> MemoryState:
        address, present = self.address_keys(evicted)
        feature_BHLF = self.features(address) * present[..., None]
        outer_BHFd = feature_BHLF.transpose(-1, -2) @ self.address_values(evicted)
        return self.accumulate(state, {"M": outer_BHFd, "z": feature_BHLF.sum(2)})

    def read(self, state: MemoryState, query_BQnd: Tensor, output_BQnd: Tensor, lse_BQn: Tensor) -> Readout:
        address = self.address_queries(query_BQnd)
        feature_BHnF = self.features(address)
        mass_BHn = (feature_BHnF @ state.tensors["z"][..., None]).squeeze(-1)
        readout_BHnd = feature_BHnF @ state.tensors["M"] / mass_BHn.clamp(min=EPSILON**2)[..., None]
        if self.shape.fusion != "joint":
            return self.fuse(readout_BHnd, address, output_BQnd)
        offset_BHn = torch.einsum("bhnp,hp->bhn", address, self.mass_offset_Hp) + self.mass_bias_H[:, None]
        # A head that lost no token has no mass, whose logarithm has no gradient.
        holds_BH1 = state.tensors["z"].sum(-1, keepdim=True) > 0
        memory_lse_BHn = torch.where(holds_BH1, torch.where(holds_BH1, mass_BHn, 1.0).log(), -torch.inf) + offset_BHn
        new = query_BQnd.shape[2]
        by_query_head = lambda x: x.unflatten(2, (self.group, new)).flatten(1, 2)  # noqa: E731
        fused = fuse_by_mass(output_BQnd.float(), lse_BQn, by_query_head(readout_BHnd), by_query_head(memory_lse_BHn))
        return Readout(fused.to(output_BQnd.dtype))
