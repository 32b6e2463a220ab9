"""A trained indexer on disk: a folder with indexer.safetensors and config.json, like a Hub model."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from indexmem.errors import UserError
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.models.geometry import Geometry

FORMAT = 1
WEIGHTS, CONFIG = "indexer.safetensors", "config.json"


def save_indexers(indexers: IndexerStack, folder: str | Path, trained: dict[str, Any] | None = None) -> Path:
    """Write weights, then the config that makes the folder loadable; each file appears whole or not at all.

    `trained` records how the weights came to be (backbone, target, data, steps, loss).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in indexers.state_dict().items()}
    save_file(state, folder / f"{WEIGHTS}.tmp")
    os.replace(folder / f"{WEIGHTS}.tmp", folder / WEIGHTS)
    config = {
        "format": FORMAT,
        "kind": "indexer",
        "indexer": indexers.shape.to_dict(),
        "geometry": indexers.geometry.to_dict(),
        "parameters": indexers.parameter_count,
        "trained": trained or {},
    }
    (folder / f"{CONFIG}.tmp").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    os.replace(folder / f"{CONFIG}.tmp", folder / CONFIG)
    return folder


def read_config(folder: str | Path) -> dict[str, Any]:
    """The checkpoint's config.json. Raises UserError when the folder is not an indexer checkpoint."""
    path = Path(folder) / CONFIG
    if not path.is_file() or not (Path(folder) / WEIGHTS).is_file():
        raise UserError(f"{folder} is not an indexer checkpoint: it needs {CONFIG} and {WEIGHTS}.")
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("kind") != "indexer" or config.get("format") != FORMAT:
        raise UserError(
            f"{path}: expected kind 'indexer', format {FORMAT}, got {config.get('kind')}, {config.get('format')}."
        )
    return config


def check_geometry(folder: str | Path, geometry: Geometry) -> None:
    """Raise UserError that lists every size in which the checkpoint and the backbone differ."""
    stored = read_config(folder)["geometry"]
    needed = ("layers", "hidden_size", "heads", "kv_heads", "head_dim")
    differences = [
        f"{name}: checkpoint {stored.get(name)}, model {getattr(geometry, name)}"
        for name in needed
        if stored.get(name) != getattr(geometry, name)
    ]
    if differences:
        raise UserError(
            f"Checkpoint {folder} was trained for another geometry ({'; '.join(differences)}). "
            "Distil an indexer for this model, or point indexer.checkpoint at one that fits."
        )


def load_indexers(folder: str | Path) -> IndexerStack:
    """Rebuild the stack from its folder (fp32, on CPU)."""
    config = read_config(folder)
    indexers = IndexerStack(IndexerShape(**config["indexer"]), Geometry(**config["geometry"]))
    indexers.load_state_dict(load_file(Path(folder) / WEIGHTS))
    return indexers


def weights_hash(folder: str | Path) -> str:
    """Content hash of the weights: part of every cell's identity."""
    digest = hashlib.sha256()
    for name in (WEIGHTS, CONFIG):
        digest.update((Path(folder) / name).read_bytes())
    return digest.hexdigest()[:16]
