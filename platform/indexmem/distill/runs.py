"""Where a distillation lives on disk, and under which name.

The name is a hash of all that shapes the weights, so the same spec finds its finished run again and any change makes a
new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from indexmem.config.reference import without_folders
from indexmem.config.schema import Experiment
from indexmem.config.spec import OPERATIONAL, content_hash, run_root
from indexmem.distill.corpus import open_corpus
from indexmem.distill.history import History
from indexmem.eviction.checkpoint import CONFIG, all_weights_hash
from indexmem.eviction.methods.learned import trained_share
from indexmem.files import copy_folder
from indexmem.models.assets import modules_folder
from indexmem.models.backbone import inspect, model_fingerprint
from indexmem.plugins.named import code_named, names_of_memory

# Settings that came later, by section: at these values a run keeps the name that it had without them.
LATER: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "indexer": {"reads": "hidden", "pair_term": True, "token_term": 0, "share": "head", "floor": None},
        "target": {"loss": "kl", "request": "", "chunk": 2048},
        "distill": {"packing": False, "score_products": "float32", "locret_hidden": 1024},
    }
)
STREAM_VERSION = 2  # of distill/data.py; raise when the same texts give other micro-batches


def runs_folder(experiment: Experiment) -> Path:
    """Where all trainings of the spec's run root lie."""
    return run_root(experiment) / "distill"


@dataclass(frozen=True)
class DistillRun:
    id: str
    folder: Path

    @classmethod
    def of(cls, experiment: Experiment) -> DistillRun:
        """Raises UserError when model or texts cannot be found."""
        sections = {
            "indexer": _indexer(experiment),
            "memory": experiment.memory.model_dump(mode="json"),
            "target": experiment.target.model_dump(mode="json"),
            "distill": experiment.distill.model_dump(mode="json", exclude={*OPERATIONAL, "start_from"}),
        }
        identity = {
            "model": model_fingerprint(experiment.model),
            **{
                section: without_folders(_as_before(settings, LATER.get(section, {})))
                for section, settings in sections.items()
            },
            "stream": STREAM_VERSION,
            "texts": [open_corpus(text).fingerprint for text in experiment.distill.texts],
            **_begun_with(experiment),
        }
        code = code_named(names_of_memory(experiment))
        identity |= {"code": code} if code else {}
        name = content_hash(identity)
        return cls(name, runs_folder(experiment) / name)

    @property
    def history(self) -> Path:
        return self.folder / "history"

    def read_history(self) -> list[dict[str, Any]]:
        """What its steps measured, one dict a step."""
        return History(self.history).read()

    @property
    def final(self) -> Path:
        """The trained indexers; exists only when training has finished."""
        return self.folder / "final"

    @property
    def finished(self) -> bool:
        return (self.final / CONFIG).is_file()

    def finish(self, checkpoint: Path, leave_out: tuple[str, ...] = ()) -> None:
        """Publish a checkpoint as the run's result, atomically."""
        copy_folder(checkpoint, self.final, leave_out)


def _indexer(experiment: Experiment) -> dict[str, Any]:
    """The section with what `share` means here, and without a floor where no heads share."""
    settings = experiment.indexer.model_dump(mode="json", exclude={"checkpoint"})
    rows = inspect(experiment.model).kv_heads if experiment.indexer.scope == "kv_head" else 1
    sections = {"indexer": settings, "target": experiment.target.model_dump(mode="json")}
    settings["share"] = trained_share(sections, rows)
    return settings if settings["share"] != "head" else settings | {"floor": None}


def _begun_with(experiment: Experiment) -> dict[str, str]:
    """Hashes of trained modules that a training builds on, which have names of their own only as folders."""
    config, found = experiment.distill, {}
    if config.start_from is not None:
        found["start_from"] = all_weights_hash(modules_folder(config.start_from))
    if "memory" in config.modules and "indexer" not in config.modules and experiment.indexer.checkpoint is not None:
        found["evicts by"] = all_weights_hash(modules_folder(experiment.indexer.checkpoint))
    return found


def _as_before(settings: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in later or value != later[name]}
