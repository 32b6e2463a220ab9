"""Trained modules on disk: a folder with config.json and one safetensors file per module, like a Hub model.

A run trains one or more named modules ("indexer", "memory-indexer", "memory-snapkv", "locret"); each is a ModuleList
over layers with a `shape` that rebuilds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from indexmem.errors import UserError
from indexmem.files import draft_of, write_whole
from indexmem.models.geometry import Geometry

FORMAT = 2
CONFIG = "config.json"


def save_modules(modules: Mapping[str, Any], folder: str | Path, trained: dict[str, Any] | None = None) -> Path:
    """Write weights, then the config that makes the folder loadable; each file appears whole or not at all.

    `trained` records how the weights came to be (backbone, target, data, steps, loss).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {}
    for name, module in modules.items():
        state = {key: tensor.detach().cpu().contiguous() for key, tensor in module.state_dict().items()}
        with draft_of(folder / f"{name}.safetensors") as draft:
            save_file(state, draft)
        count = sum(parameter.numel() for parameter in module.parameters())
        described[name] = {"shape": module.shape.to_dict(), "parameters": count}
    geometry = next(iter(modules.values())).geometry.to_dict()
    config = {"format": FORMAT, "geometry": geometry, "modules": described, "trained": trained or {}}
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    return folder


def read_config(folder: str | Path) -> dict[str, Any]:
    """The checkpoint's config.json. Raises UserError when the folder is not a checkpoint of this format."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is not a checkpoint of trained modules: it has no {CONFIG}.")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config.get("format") != FORMAT or "modules" not in config:
        raise UserError(f"{path}: expected a checkpoint of format {FORMAT}, got format {config.get('format')}.")
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
            "Distil for this model, or point indexer.checkpoint at a checkpoint that fits."
        )


def load_module(folder: str | Path, name: str) -> tuple[dict[str, Any], Geometry, dict[str, Tensor]]:
    """Shape, geometry and weights of one module.

    Raises UserError naming what the checkpoint does hold, or the tensor that is not finite.
    """
    config = read_config(folder)
    if name not in config["modules"] or not (Path(folder) / f"{name}.safetensors").is_file():
        held = ", ".join(config["modules"])
        raise UserError(f"{folder} holds no trained '{name}' (it holds: {held}). Distil with the modules that need it.")
    shape: dict[str, Any] = config["modules"][name]["shape"]
    path = Path(folder) / f"{name}.safetensors"
    state = load_file(path)
    check_finite(str(path), state)
    return shape, Geometry(**config["geometry"]), state


def check_finite(source: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError that names the tensor of trained weights that holds NaN or infinity."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{source}: tensor '{name}' holds NaN or infinity, so nothing that it scores can be ranked. Its "
                "training diverged, or the file is damaged: take another checkpoint, or train again."
            )


def weights_hash(folder: str | Path, *names: str) -> str:
    """Content hash of the named modules' weights and shapes: part of every cell's identity."""
    modules = read_config(folder)["modules"]
    digest = hashlib.sha256()
    for name in names:
        digest.update(json.dumps(modules[name]["shape"], sort_keys=True).encode())
        digest.update((Path(folder) / f"{name}.safetensors").read_bytes())
    return digest.hexdigest()[:16]


def all_weights_hash(folder: str | Path) -> str:
    """The same of all modules of a checkpoint."""
    return weights_hash(folder, *sorted(read_config(folder)["modules"]))
