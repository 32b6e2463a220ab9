"""Everything in a spec that is somebody's own: to be hashed where a run is named, and to be sent where a job runs."""

from __future__ import annotations

from collections.abc import Iterator

from indexmem.config.reference import PluginKind, without_folders
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.plugins.load import Found, find

NamedKind = tuple[PluginKind, str]


def own_code(experiment: Experiment) -> dict[str, Found]:
    """NamedKind as the spec has it -> what it stands for. Raises UserError as `find` does."""
    return _found({*names_of_grid(experiment), *names_of_training(experiment)})


def code_named(names: Iterator[NamedKind]) -> dict[str, str]:
    """NamedKind without folders -> hash of its source; {} where all code is ours."""
    return {str(without_folders(name)): found.code for name, found in _found(set(names)).items()}


def names_of_grid(experiment: Experiment) -> Iterator[NamedKind]:
    """What may be somebody's own in an evaluation."""
    grid = experiment.grid
    for method in grid.methods:
        yield from _of_method(method)
    for benchmark in grid.benchmarks:
        yield "benchmarks", benchmark.name
        if isinstance(metric := benchmark.params.get("metric"), str):
            yield "scorers", metric
    yield "texts", grid.haystack


def names_of_training(experiment: Experiment) -> Iterator[NamedKind]:
    """What may be somebody's own in a training."""
    yield from names_of_memory(experiment)
    yield from (("texts", text.name) for text in experiment.distill.texts if text.name is not None)


def names_of_memory(experiment: Experiment) -> Iterator[NamedKind]:
    """What may be somebody's own in a memory: its design, and the methods for whose evictions it is trained."""
    swept = experiment.sweep.axes.get("memory.features")
    for features in (experiment.memory.features, *(swept.values if swept is not None else ())):
        yield "memories", features
    for base in experiment.memory.bases:
        yield "methods", base


def _of_method(method: MethodConfig) -> Iterator[NamedKind]:
    yield "methods", method.name.removesuffix("+memory")
    if "base" in method.params:
        yield from _of_method(MethodConfig.model_validate(method.params["base"]))


def _found(names: set[NamedKind]) -> dict[str, Found]:
    found = {name: find(kind, name) for kind, name in sorted(names)}
    return {name: each for name, each in found.items() if each is not None}
