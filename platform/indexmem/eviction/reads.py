"""What an indexer reads of each token: the layer's input, or only what a cache holds of it.

Serving engines hand out K and V, and no hidden states: an indexer that reads `key` or `key_value` needs nothing else.
Shapes: B batch, L tokens, H KV heads, d head_dim, D model width, X what is read of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from indexmem.models.geometry import Geometry

HIDDEN = "hidden"


class Seen(Protocol):
    """What can be read of a layer; a LayerTap is one."""

    @property
    def hidden_BLD(self) -> Tensor: ...
    @property
    def key_BHLd(self) -> Tensor: ...
    @property
    def key_pre_BHLd(self) -> Tensor: ...
    @property
    def value_BHLd(self) -> Tensor: ...


@dataclass(frozen=True)
class Reading:
    """One way to read a layer."""

    width: Callable[[Geometry], int]  # X
    of: Callable[[Seen], Tensor]  # [B, L, X]


def _flat(states_BHLd: Tensor) -> Tensor:
    """All heads of a token side by side, [B, L, H d]."""
    return states_BHLd.transpose(1, 2).flatten(2)


def _key_width(geometry: Geometry) -> int:
    return geometry.kv_heads * geometry.head_dim


READS: Mapping[str, Reading] = MappingProxyType(
    {
        HIDDEN: Reading(lambda geometry: geometry.hidden_size, lambda tap: tap.hidden_BLD),
        "key": Reading(_key_width, lambda tap: _flat(tap.key_BHLd)),
        "key_pre": Reading(_key_width, lambda tap: _flat(tap.key_pre_BHLd)),
        "key_value": Reading(
            lambda geometry: 2 * _key_width(geometry),
            lambda tap: torch.cat((_flat(tap.key_BHLd), _flat(tap.value_BHLd)), dim=-1),
        ),
    }
)
