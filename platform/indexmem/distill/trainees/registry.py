"""Names of `distill.modules` -> what they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from indexmem.config.schema import Experiment
from indexmem.distill.trainees.base import Trainee
from indexmem.distill.trainees.indexer import IndexerTrainee
from indexmem.models.geometry import Geometry

TRAINEES: Mapping[str, Callable[[Experiment, Geometry], Sequence[Trainee]]] = MappingProxyType(
    {
        "indexer": lambda experiment, geometry: [IndexerTrainee(experiment, geometry)],
    }
)


def make_trainees(experiment: Experiment, geometry: Geometry) -> list[Trainee]:
    """All that the spec trains, in the order of `distill.modules`."""
    return [trainee for name in experiment.distill.modules for trainee in TRAINEES[name](experiment, geometry)]
