"""A backbone's memories: one per layer, trained for the evictions of one base method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from indexmem.eviction.memory.base import LatentMemory, MemoryShape
from indexmem.eviction.memory.maps import LinearMemory, PositiveMemory
from indexmem.eviction.memory.slots import SlotMemory
from indexmem.eviction.trained_layers import TrainedLayers
from indexmem.models.geometry import Geometry

MEMORY_KINDS: Mapping[str, type[LatentMemory]] = MappingProxyType(
    {"slots": SlotMemory, "positive": PositiveMemory, "linear": LinearMemory}
)


def module_name(base: str) -> str:
    """Name in a checkpoint of the memory trained for evictions of method `base`."""
    return f"memory-{base}"


class MemoryStack(TrainedLayers[MemoryShape]):
    """One memory for each layer of a backbone."""

    SHAPE = MemoryShape

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        kind = MEMORY_KINDS[shape.features]
        super().__init__(shape, geometry, (kind(shape, geometry) for _ in range(geometry.layers)))

    @classmethod
    def load_for(cls, base: str, folder: str | Path) -> MemoryStack:
        """The memory of a checkpoint folder that was trained for evictions of method `base`."""
        return cls.load(folder, module_name(base))

    @property
    def state_bytes(self) -> int:
        """Bytes of the fast weights of one sequence, all layers."""
        return sum(4 * memory.state_floats() for memory in self)  # type: ignore[operator]
