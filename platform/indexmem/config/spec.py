"""What a spec is called elsewhere: dotted parameters, content hashes, folders."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.files import expanded, folder_at

# Settings of `distill` that change how fast or how safely training runs, not what it computes.
OPERATIONAL = frozenset(
    ("use_gpu", "min_workers", "checkpoint_every", "keep_checkpoints", "checkpoint_storage", "max_failures")
)


def home() -> Path:
    """Folder for assets and results, outside any repository: $INDEXMEM_HOME, else ~/.indexmem."""
    return folder_at(expanded(os.environ.get("INDEXMEM_HOME") or "~/.indexmem").absolute())


def cache_folder() -> Path:
    """Folder for what can be made again, shared by all run roots: $INDEXMEM_CACHE, else <home>/cache."""
    return folder_at(expanded(os.environ.get("INDEXMEM_CACHE") or home() / "cache").absolute())


def run_root(experiment: Experiment) -> Path:
    """Where this spec's results live (absolute, since workers run elsewhere).

    Raises UserError for a file, and for a URI: checkpoints and MLflow's database need a file system that all nodes
    share.
    """
    if experiment.run.root and "://" in experiment.run.root:
        raise UserError(
            f"run.root={experiment.run.root} is not a folder. Use a path that all nodes share, such as NFS."
        )
    return folder_at(expanded(experiment.run.root).absolute() if experiment.run.root else home() / "runs")


def as_said(spec: BaseModel) -> dict[str, Any]:
    """What a spec sets, JSON-like, for another process to validate again. Defaults stay unsaid: what is trained already
    may differ from them, and not from what a user asked for.
    """
    return spec.model_dump(mode="json", exclude_unset=True)


def flatten(value: BaseModel | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted leaf settings: {'grid.samples': 20, ...}. Lists stay whole."""
    mapping = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    flat: dict[str, Any] = {}
    for key, item in mapping.items():
        if isinstance(item, Mapping) and item:
            flat.update(flatten(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def content_hash(value: Any, length: int = 16) -> str:
    """Stable hash of JSON-like content: equal content, equal name, on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
