"""Names of `distill.modules` -> what they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from indexmem.config.schema import Experiment
from indexmem.distill.trainees.base import Trainee
from indexmem.distill.trainees.indexer import IndexerTrainee
from indexmem.distill.trainees.locret import LocretTrainee
from indexmem.distill.trainees.memory import MemoryTrainee
from indexmem.eviction.indexer import INDEXER, IndexerStack
from indexmem.models.geometry import Geometry

# (spec, geometry, device, trainees made before) -> trainees. Listed in the order in which they are made and run.
TraineeFactory = Callable[[Experiment, Geometry, str, Sequence[Trainee]], Sequence[Trainee]]


def _memories(experiment: Experiment, geometry: Geometry, device: str, made: Sequence[Trainee]) -> list[Trainee]:
    """One memory per base; an indexer that is trained in the same run evicts as it learns."""
    indexer = next((trainee.trained for trainee in made if trainee.name == INDEXER), None)
    assert indexer is None or isinstance(indexer, IndexerStack)
    return [MemoryTrainee(experiment, geometry, base, indexer, device) for base in experiment.memory.bases]


TRAINEES: Mapping[str, TraineeFactory] = MappingProxyType(
    {
        "indexer": lambda experiment, geometry, device, made: [IndexerTrainee(experiment, geometry)],
        "memory": _memories,
        "locret": lambda experiment, geometry, device, made: [LocretTrainee(experiment, geometry)],
    }
)


def make_trainees(experiment: Experiment, geometry: Geometry, device: str = "cpu") -> list[Trainee]:
    """All that the spec's `distill.modules` names.

    `device` is the backbone's: what is not trained but used in training, as an indexer that evicts for a memory, lies
    there from the start.
    """
    made: list[Trainee] = []
    for name, factory in TRAINEES.items():
        if name in experiment.distill.modules:
            made.extend(factory(experiment, geometry, device, tuple(made)))
    return made
