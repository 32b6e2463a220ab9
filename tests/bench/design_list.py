"""The memory designs that are compared, and how a command line names some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from indexmem.config.load import validate
from indexmem.errors import UserError
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MEMORY_KINDS
from indexmem.models.geometry import Geometry

LINEAR: Mapping[str, Any] = MappingProxyType(
    {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre"}
)

# Equal bytes: on SmolLM2 (3 KV heads of 64) 64 tokens of K and V are 24,576 numbers a layer. The paper's d/8 costs 109.
DESIGNS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper: linear, add, kv_flat, pre-RoPE, d/8": LINEAR,
        "linear, add, kv_flat, 42": {**LINEAR, "dim": 42},
        "linear, add, model, 42": {**LINEAR, "input": "model", "dim": 42},
        "linear, add, head, 126": {**LINEAR, "input": "head", "dim": 126},
        "linear, add, kv_flat, model space, 42": {**LINEAR, "value": "model", "dim": 42},
        "linear, mix, kv_flat, 42": {**LINEAR, "fusion": "mix", "dim": 42},
        "positive, joint, pre-RoPE, 126": {"features": "positive", "rotary": "pre", "dim": 126},
        "positive, joint, post-RoPE, 126": {"features": "positive", "rotary": "post", "dim": 126},
        "positive, mix, post-RoPE, 126": {"features": "positive", "fusion": "mix", "rotary": "post", "dim": 126},
        "slots, joint, pre-RoPE, 63": {"features": "slots", "rotary": "pre", "dim": 63},
        "slots, joint, post-RoPE, 63": {"features": "slots", "rotary": "post", "dim": 63},
        "slots, joint, post-RoPE, 31": {"features": "slots", "rotary": "post", "dim": 31},
        "slots, joint, post-RoPE, 15": {"features": "slots", "rotary": "post", "dim": 15},
    }
)


def choose(wanted: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Designs named exactly, or by a part of their names; all of them when nothing is wanted. UserError when none."""
    chosen: set[str] = set()
    for part in wanted:
        found = [part] if part in DESIGNS else [name for name in DESIGNS if part in name]
        if not found:
            raise UserError(f"No design is called '{part}'. Give a name or a part of one:\n  " + "\n  ".join(DESIGNS))
        chosen.update(found)
    return {name: design for name, design in DESIGNS.items() if not wanted or name in chosen}


def shape_of(name: str, geometry: Geometry) -> MemoryShape:
    return MemoryShape.of(validate({"memory": dict(DESIGNS[name])}, name).memory, geometry)


def equal_tokens(shape: MemoryShape, geometry: Geometry) -> int:
    """Tokens per KV head whose fp32 K and V take at least as many numbers as the memory's state."""
    state = MEMORY_KINDS[shape.features](shape, geometry).state_floats()
    return math.ceil(state / (2 * geometry.kv_heads * geometry.head_dim))
