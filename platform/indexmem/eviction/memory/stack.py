"""A backbone's memories: one per layer, trained for the evictions of one base method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from indexmem.config.modules import module_name
from indexmem.errors import UserError
from indexmem.eviction.memory.base import LatentMemory, MemoryShape
from indexmem.eviction.memory.maps import LinearMemory, PositiveMemory
from indexmem.eviction.memory.slots import SlotMemory
from indexmem.eviction.trained_layers import TrainedLayers
from indexmem.models.geometry import Geometry
from indexmem.plugins.load import find, unknown_name

MEMORY_KINDS: Mapping[str, type[LatentMemory]] = MappingProxyType(
    {"slots": SlotMemory, "positive": PositiveMemory, "linear": LinearMemory}
)


def memory_kind(features: str) -> type[LatentMemory]:
    """One of ours, or a class of somebody's own. Raises UserError for another name and for what is no memory."""
    if features in MEMORY_KINDS:
        return MEMORY_KINDS[features]
    found = find("memories", features)
    if found is None:
        raise unknown_name("memories", "memory", features, MEMORY_KINDS)
    kind = found.value
    if not (isinstance(kind, type) and issubclass(kind, LatentMemory)):
        raise UserError(
            f"memory.features: '{features}' is no memory. Expected a subclass of "
            "indexmem.eviction.memory.base.LatentMemory."
        )
    return kind


class MemoryStack(TrainedLayers[MemoryShape]):
    """One memory for each layer of a backbone."""

    SHAPE = MemoryShape

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        kind = memory_kind(shape.features)
        super().__init__(shape, geometry, (kind(shape, geometry) for _ in range(geometry.layers)))

    @classmethod
    def load_for(cls, base: str, folder: str | Path) -> MemoryStack:
        """The memory of a checkpoint folder that was trained for evictions of method `base`."""
        return cls.load(folder, module_name(base))

    @property
    def state_bytes(self) -> int:
        """Bytes of the fast weights of one sequence, all layers."""
        return sum(4 * memory.state_floats() for memory in self)  # type: ignore[operator]
