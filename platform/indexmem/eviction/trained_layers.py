"""Trained modules of a backbone's layers, as one thing that a checkpoint holds under a name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import nn

from indexmem.errors import UserError
from indexmem.eviction.checkpoint import CONFIG, MEND, fill_module, load_module, weights_path
from indexmem.models.geometry import Geometry

ShapeT = TypeVar("ShapeT")  # a dataclass: sizes and choices from which the modules are built


class TrainedLayers(nn.ModuleList, Generic[ShapeT]):
    """Modules in layer order. A subclass is made of (shape, geometry)."""

    SHAPE: ClassVar[type[Any]]  # the shape's class
    NAME: ClassVar[str]  # of the modules in a checkpoint

    def __init__(self, shape: ShapeT, geometry: Geometry, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)
        self.shape = shape
        self.geometry = geometry

    @classmethod
    def load(cls, folder: str | Path, name: str = "") -> Self:
        """The modules stored as `name` (by default `NAME`) in a checkpoint folder, fp32, on CPU.

        Raises UserError when there is none, or it is not what was written.
        """
        name = name or cls.NAME
        shape, geometry, weights = load_module(folder, name)
        try:
            stack = cls(cls.SHAPE(**shape), geometry)  # type: ignore[call-arg]
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(
                f"{Path(folder) / CONFIG}: no '{name}' can be built of shape {shape} ({error}). {MEND}"
            ) from None
        fill_module(stack, weights, weights_path(folder, name))
        return stack

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
