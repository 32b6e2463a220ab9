"""What a grid is made of. Nothing here imports torch, so a worker can be told its work before it loads a model."""

from __future__ import annotations

from dataclasses import dataclass

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig

RETENTION_SAMPLES = 2  # per benchmark: samples whose kept tokens are stored


@dataclass(frozen=True)
class Cell:
    """One (method, budget) on one benchmark build."""

    id: str
    method: MethodConfig
    budget: Budget
    benchmark: str
    benchmark_build: str
    checkpoint: str


@dataclass(frozen=True)
class Task:
    """One sample with the cells that still need it."""

    sample: Sample
    cells: tuple[Cell, ...]
    keep_retention: bool = False  # store which tokens each cell kept, for the viewer
