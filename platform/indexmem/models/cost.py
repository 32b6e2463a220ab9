"""What passes of a model cost by its sizes alone: a model of cost for plans, where nothing has been measured yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from indexmem.models.geometry import Geometry

MLP_WIDTH = 3.25  # of the hidden size; 2.7 to 3.5 in the families that are supported, and not in a Geometry
UNITS = (("hours", 1), ("minutes", 60), ("seconds", 3600))
DeviceKind = Literal["GPU", "CPU"]


@dataclass(frozen=True)
class Speed:
    """What a device gives a model in practice, from the slowest to the fastest that is assumed."""

    flops: tuple[float, float]  # a second
    bytes: tuple[float, float]  # read a second
    said: str

    def seconds(self, flops: float, read: float) -> tuple[float, float]:
        """From the fastest to the slowest, for so many operations and so many bytes read."""
        slow, fast = (flops / self.flops[at] + read / self.bytes[at] for at in (0, 1))
        return fast, slow


# GPUs of the data centre in 16 bits, at a tenth to a half of their peak; a core of a server, with fp32 of one thread.
SPEEDS: Mapping[DeviceKind, Speed] = MappingProxyType(
    {
        "GPU": Speed((50e12, 400e12), (1e12, 4e12), "50 to 400 TFLOP/s and 1 to 4 TB/s a GPU"),
        "CPU": Speed((15e9, 100e9), (2e9, 15e9), "15 to 100 GFLOP/s and 2 to 15 GB/s a core"),
    }
)


def time_in_words(hours: Sequence[float], of: str = "") -> str:
    """'about 1.2 GPU-hours', '3.4 to 29 CPU-minutes': two digits, in a unit that suits the largest."""
    unit, size = next(pair for pair in UNITS if max(hours) * pair[1] >= 1 or pair is UNITS[-1])
    texts = [f"{float(f'{hour * size:.2g}'):,.10g}" for hour in hours]
    said = f"about {texts[0]}" if len(set(texts)) == 1 else " to ".join(texts)
    return f"{said} {of}-{unit}" if of else f"{said} {unit}"


def layer_parameters(geometry: Geometry) -> float:
    """Parameters of all layers, without embeddings; about."""
    of_attention = geometry.hidden_size * (2 * geometry.attention_width + 2 * geometry.kv_heads * geometry.head_dim)
    of_mlp = 3 * MLP_WIDTH * geometry.hidden_size**2
    return (geometry.layers + geometry.sliding_layers) * (of_attention + of_mlp)


def weight_bytes(geometry: Geometry, element_size: int) -> float:
    """Of the whole model, two embeddings included; about."""
    return element_size * (layer_parameters(geometry) + 2 * geometry.vocab_size * geometry.hidden_size)


def attention_flops(geometry: Geometry, tokens: int) -> float:
    """Of causal attention over so many tokens, in all layers with full attention."""
    return 2.0 * geometry.layers * geometry.attention_width * tokens**2


def pass_flops(geometry: Geometry, tokens: int) -> float:
    """Of a forward pass over so many tokens, without the last layer's logits."""
    return 2 * layer_parameters(geometry) * tokens + attention_flops(geometry, tokens)


def step_flops(geometry: Geometry) -> float:
    """Of one generated token, without attention."""
    return 2 * (layer_parameters(geometry) + geometry.vocab_size * geometry.hidden_size)
