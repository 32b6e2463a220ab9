"""Slow, obvious versions of the memories' equations, fp64, one token and one query at a time: the oracles of the tests.

Shapes: H KV heads, Q query heads, g = Q/H, L tokens, d head_dim, D model width; one sequence, one query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from indexmem.eviction.memory.clustering import LLOYD_ITERATIONS
from indexmem.eviction.memory.maps import EPSILON, LinearMemory, PositiveMemory
from indexmem.eviction.memory.slots import SlotMemory


def linear_readout(
    memory: LinearMemory,
    writes: list[tuple[Tensor, Tensor, Tensor]],
    query_Qd: Tensor,
    output_Qd: Tensor,
    weight_DV: Tensor | None = None,
) -> Tensor:
    """Paper section 3.2: fused output [Q, d], or, for values in model space, [D] after the output projection.

    `writes` are (key [H, L, d], value [H, L, d], leaves [H, L]) in order; each decays what was written before.
    """
    shape, group = memory.shape, memory.group
    theta = memory.phi.weight.double()
    gate = memory.gate.weight.double(), memory.gate.bias.double()
    kv_heads = memory.kv_heads
    # Address spaces: a list of (key of a token, value of a token, query addresses and the query heads they serve).
    spaces = range(kv_heads) if shape.input == "head" else range(1)

    def token_key(key_Hd: Tensor, space: int) -> Tensor:
        if shape.input == "head":
            return key_Hd[space]
        return key_Hd.flatten() if shape.input == "kv_flat" else key_Hd.repeat_interleave(group, 0).flatten()

    def token_value(value_Hd: Tensor, space: int) -> Tensor:
        heads = [space] if shape.input == "head" else list(range(kv_heads))
        if shape.value == "attn":
            return value_Hd[space] if shape.input == "head" else value_Hd.repeat_interleave(group, 0).flatten()
        assert weight_DV is not None
        total = torch.zeros(weight_DV.shape[0], dtype=torch.float64)
        for head in heads:
            for q in range(head * group, (head + 1) * group):
                columns = slice(q * memory.head_dim, (q + 1) * memory.head_dim)
                total += weight_DV[:, columns].double() @ value_Hd[head]
        return total

    def read(space: int, address: Tensor) -> Tensor:
        state_M = torch.zeros(shape.dim, _value_width(memory, weight_DV), dtype=torch.float64)
        state_b = torch.zeros(shape.dim, dtype=torch.float64)
        for key, value, leaves in writes:
            state_M, state_b = state_M * shape.decay, state_b * shape.decay
            for t in range(key.shape[1]):
                present = leaves[:, t]
                if not (present[space] if shape.input == "head" else present.any()):
                    continue
                key_Hd = key[:, t].double() * present[:, None]
                value_Hd = value[:, t].double() * present[:, None]
                feature = theta @ token_key(key_Hd, space)
                state_M += shape.write_strength * torch.outer(feature, token_value(value_Hd, space))
                state_b += shape.write_strength * feature * feature
        feature = theta @ address
        return feature @ state_M / (feature.square() @ state_b + EPSILON)

    def gated(address: Tensor) -> Tensor:
        return torch.sigmoid(gate[0][0] @ address + gate[1][0])

    query, output = query_Qd.double(), output_Qd.double()
    mean_Hd = query.view(kv_heads, group, -1).mean(1)
    if shape.value == "attn" and shape.input == "head":
        fused = []
        for q in range(query.shape[0]):
            g = gated(query[q])
            kept = output[q] if shape.fusion == "add" else (1 - g) * output[q]
            fused.append(kept + g * read(q // group, query[q]))
        return torch.stack(fused)
    addresses = {"head": list(mean_Hd), "kv_flat": [mean_Hd.flatten()], "model": [query.flatten()]}[shape.input]
    g = torch.stack([gated(address) for address in addresses]).mean()
    total = torch.stack([read(space, addresses[space]) for space in spaces]).sum(0)
    kept = output if shape.fusion == "add" else (1 - g) * output
    if shape.value == "attn":
        return kept + g * total.view_as(output)
    assert weight_DV is not None
    return weight_DV.double() @ kept.flatten() + g * total


def positive_joint_readout(
    memory: PositiveMemory,
    writes: list[tuple[Tensor, Tensor, Tensor]],
    query_Qd: Tensor,
    output_Qd: Tensor,
    lse_Q: Tensor,
) -> Tensor:
    """o = (1-w) o_K + w phi(q)^T M / phi(q).z with w = Z_E / (Z_K + Z_E): [Q, d]."""
    shape, fused = memory.shape, []
    for q, query in enumerate(query_Qd.double()):
        head = q // memory.group
        weight = memory.weight_Hpf[head].double()

        def features(x: Tensor, weight: Tensor = weight) -> Tensor:
            return torch.cat(((x @ weight).softmax(-1), (-x @ weight).softmax(-1)))

        state_M = torch.zeros(2 * memory.half_width, memory.head_dim, dtype=torch.float64)
        state_z = torch.zeros(2 * memory.half_width, dtype=torch.float64)
        for key, value, leaves in writes:
            state_M, state_z = state_M * shape.decay, state_z * shape.decay
            for t in leaves[head].nonzero().flatten().tolist():
                feature = features(key[head, t].double())
                state_M += shape.write_strength * torch.outer(feature, value[head, t].double())
                state_z += shape.write_strength * feature
        mass = features(query) @ state_z
        offset = memory.mass_offset_Hp[head].double() @ query + memory.mass_bias_H[head].double()
        evicted, kept = mass * offset.exp(), lse_Q[q].double().exp()
        share = evicted / (evicted + kept)
        fused.append((1 - share) * output_Qd[q].double() + share * (features(query) @ state_M / mass))
    return torch.stack(fused)


def slot_writes(memory: SlotMemory, writes: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
    """The slots after several writes: key, value [H, S, d], mass and dispersion [H, S].

    At each write the slots before it, their mass decayed, and the evicted tokens, each of mass `write_strength`, are
    clustered anew. A cluster is a slot: mean key and value by mass, total mass, and the mean by mass of how far each
    member's key lies from the mean key, in the metric of the queries, plus the member's own dispersion.
    """
    shape = memory.shape
    by_head = []
    for head in range(memory.kv_heads):
        metric_dd = memory.metric_Hdd.double()[head]
        scale = memory.metric_Hdd.double().diagonal(dim1=-2, dim2=-1).mean()
        metric_dd = metric_dd + 1e-6 * scale * torch.eye(len(metric_dd), dtype=torch.float64)

        def distance(a_d: Tensor, b_d: Tensor, metric_dd: Tensor = metric_dd) -> Tensor:
            return (a_d - b_d) @ metric_dd @ (a_d - b_d)

        slots: list[Slot] = []
        for key, value, leaves in writes:
            tokens = leaves[head].nonzero().flatten().tolist()
            members = [slot._replace(mass=slot.mass * shape.decay) for slot in slots if slot.mass > 0]
            members += [Slot(key[head, t].double(), value[head, t].double(), shape.write_strength, 0.0) for t in tokens]
            labels = _clusters(members, shape.dim, distance)
            slots = [
                _merged([m for m, of in zip(members, labels) if of == s], distance, key.shape[-1])
                for s in range(shape.dim)
            ]
        by_head.append(slots)
    vectors = {
        name: [torch.stack([getattr(slot, name) for slot in slots]) for slots in by_head] for name in ("key", "value")
    }
    numbers = {
        name: [torch.tensor([getattr(slot, name) for slot in slots]) for slots in by_head]
        for name in ("mass", "dispersion")
    }
    return {name: torch.stack(rows) for name, rows in (vectors | numbers).items()}


class Slot(NamedTuple):
    """A slot, or a token that becomes part of one."""

    key: Tensor  # [d]
    value: Tensor  # [d]
    mass: float
    dispersion: float


Distance = Callable[[Tensor, Tensor], Tensor]


def _clusters(members: list[Slot], clusters: int, distance: Distance) -> list[int]:
    """Weighted k-means from the farthest-first traversal; ties go to the lower index."""
    centres = [members[0].key]
    while len(centres) < clusters:
        away = [min(float(distance(member.key, centre)) for centre in centres) for member in members]
        centres.append(members[away.index(max(away))].key)

    def nearest() -> list[int]:
        away = [[float(distance(member.key, centre)) for centre in centres] for member in members]
        return [row.index(min(row)) for row in away]

    for _ in range(LLOYD_ITERATIONS):
        labels = nearest()
        for s in set(labels):
            inside = [member for member, label in zip(members, labels) if label == s]
            mass = sum(member.mass for member in inside)
            centres[s] = torch.stack([member.key * member.mass for member in inside]).sum(0) / mass
    return nearest()


def _merged(members: list[Slot], distance: Distance, dim: int) -> Slot:
    if not members:
        return Slot(torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64), 0.0, 0.0)
    mass = sum(member.mass for member in members)
    key = torch.stack([member.key * member.mass for member in members]).sum(0) / mass
    value = torch.stack([member.value * member.mass for member in members]).sum(0) / mass
    spread = sum(member.mass * (float(distance(member.key, key)) + member.dispersion) for member in members)
    return Slot(key, value, mass, spread / mass)


def slot_readout(
    memory: SlotMemory, slots: dict[str, Tensor], query_Qd: Tensor, output_Qd: Tensor, lse_Q: Tensor
) -> Tensor:
    """Softmax over kept tokens and slots together, by explicit sums of exponentials: [Q, d]."""
    fused = []
    for q, query in enumerate(query_Qd.double()):
        head = q // memory.group
        mapped = query + query @ memory.query_map_Qdd[q].double()
        total, weighted = lse_Q[q].double().exp(), lse_Q[q].double().exp() * output_Qd[q].double()
        for s in range(slots["mass"].shape[1]):
            key, value = slots["key"][head, s].double(), slots["value"][head, s].double()
            key = key + key @ memory.key_map_Hdd[head].double()
            value = value + value @ memory.value_map_Hdd[head].double()
            offset = query @ memory.offset_Qd[q].double() + memory.offset_bias_Q[q].double()
            spread = memory.dispersion_Q[q].double() * slots["dispersion"][head, s].double()
            mass = slots["mass"][head, s].double() * (mapped @ key * memory.scaling + spread + offset).exp()
            total, weighted = total + mass, weighted + mass * value
        fused.append(weighted / total)
    return torch.stack(fused)


def _value_width(memory: LinearMemory, weight_DV: Tensor | None) -> int:
    if memory.shape.value == "model":
        assert weight_DV is not None
        return weight_DV.shape[0]
    heads = memory.kv_heads * memory.group
    return memory.head_dim if memory.shape.input == "head" else heads * memory.head_dim
