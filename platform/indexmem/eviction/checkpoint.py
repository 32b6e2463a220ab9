"""Trained modules on disk: a folder with config.json and one safetensors file per module, like a Hub model.

A run trains one or more named modules ("indexer", "memory-indexer", "memory-snapkv", "locret"); each is a ModuleList
over layers with a `shape` that rebuilds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from indexmem.config.reference import with_files
from indexmem.errors import UserError
from indexmem.files import draft_of, write_whole
from indexmem.models.geometry import Geometry

FORMAT = 2
CONFIG = "config.json"
SIZES = ("layers", "hidden_size", "heads", "kv_heads", "head_dim")  # that modules depend on
MEND = "Copy the folder again from where it came from, or delete it and train again (`indexmem distill SPEC`)."
SHOWN = 3  # differences between tensors that a message lists


def save_modules(modules: Mapping[str, Any], folder: str | Path, trained: dict[str, Any] | None = None) -> Path:
    """Write weights, then the config that makes the folder loadable; each file appears whole or not at all.

    `trained` records how the weights came to be (backbone, target, data, steps, loss).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {}

    def beside(file: str) -> str:
        """A checkpoint is whole without the files whose classes its modules are of: it has copies."""
        source = Path(file)
        if source.resolve().parent != folder.resolve():
            write_whole(folder / source.name, source.read_bytes())
        return source.name

    for name, module in modules.items():
        state = {key: tensor.detach().cpu().contiguous() for key, tensor in module.state_dict().items()}
        with draft_of(weights_path(folder, name)) as draft:
            save_file(state, draft)
        count = sum(parameter.numel() for parameter in module.parameters())
        described[name] = {"shape": with_files(asdict(module.shape), beside), "parameters": count}
    geometry = next(iter(modules.values())).geometry.to_dict()
    config = {"format": FORMAT, "geometry": geometry, "modules": described, "trained": trained or {}}
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    return folder


def read_config(folder: str | Path) -> dict[str, Any]:
    """The checkpoint's config.json, with 'geometry', 'modules' (each with its 'shape') and 'trained' as mappings.

    Raises UserError when the folder is not a checkpoint of this format, or the file is damaged.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is not a checkpoint of trained modules: it has no {CONFIG}.")
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}. {MEND}") from None
    found = config.get("format") if isinstance(config, dict) else None
    if found != FORMAT:
        raise UserError(f"{path}: expected a checkpoint of format {FORMAT}, got format {found}.")
    for name in ("geometry", "modules", "trained"):
        if not isinstance(config.get(name), dict):
            raise UserError(f"{path} has no '{name}', which every checkpoint has. {MEND}")
    for name, module in config["modules"].items():
        if not isinstance(module, dict) or not isinstance(module.get("shape"), dict):
            raise UserError(f"{path}: the module '{name}' has no 'shape', from which it is built. {MEND}")
    return dict(config)


def check_geometry(folder: str | Path, geometry: Geometry) -> None:
    """Raise UserError that lists every size in which the checkpoint and the backbone differ."""
    if differences := size_differences(_geometry(folder, read_config(folder)), geometry):
        raise UserError(
            f"Checkpoint {folder} was trained for another geometry ({differences}). "
            "Distil for this model, or point indexer.checkpoint at a checkpoint that fits."
        )


def size_differences(trained: Geometry, model: Geometry) -> str:
    """Every size in which a model differs from the one that modules were trained for, as text."""
    pairs = {name: (getattr(trained, name), getattr(model, name)) for name in SIZES}
    return "; ".join(f"{name}: trained for {was}, model has {now}" for name, (was, now) in pairs.items() if was != now)


def load_module(folder: str | Path, name: str) -> tuple[dict[str, Any], Geometry, dict[str, Tensor]]:
    """Shape, geometry and weights of one module.

    Raises UserError naming what the checkpoint does hold, the file that is damaged, or the tensor that is not finite.
    """
    config = read_config(folder)
    path = _weights(folder, config, name)
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}. {MEND}") from None
    check_finite(str(path), weights)
    shape = with_files(config["modules"][name]["shape"], lambda file: str(Path(folder) / file))
    return shape, _geometry(folder, config), weights


def check_finite(source: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError that names the tensor of trained weights that holds NaN or infinity."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{source}: tensor '{name}' holds NaN or infinity, so nothing that it scores can be ranked. Its "
                "training diverged, or the file is damaged: take another checkpoint, or train again."
            )


def fill_module(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Fill a module with all of its tensors, read from the file `path`. Raises UserError that lists what differs."""
    wanted, held = ({name: tuple(x.shape) for name, x in tensors.items()} for tensors in (module.state_dict(), weights))
    differences = [
        f"{name} is {held.get(name, 'missing')} there and {wanted.get(name, 'unknown')} here"
        for name in sorted(wanted.keys() | held.keys())
        if held.get(name) != wanted.get(name)
    ]
    if differences:
        more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise UserError(
            f"{path} does not hold what {CONFIG} tells of it: {'; '.join(differences[:SHOWN])}{more}. {MEND}"
        )
    module.load_state_dict(weights)


def weights_path(folder: str | Path, name: str) -> Path:
    """The file of a module's weights."""
    return Path(folder) / f"{name}.safetensors"


def weights_hash(folder: str | Path, *names: str) -> str:
    """Content hash of the named modules' weights and shapes: part of every cell's identity.

    Raises UserError for a module that the checkpoint does not hold.
    """
    config = read_config(folder)
    digest = hashlib.sha256()
    for name in names:
        content = _weights(folder, config, name).read_bytes()
        digest.update(json.dumps(config["modules"][name]["shape"], sort_keys=True).encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def all_weights_hash(folder: str | Path) -> str:
    """`weights_hash` of all modules of a checkpoint."""
    return weights_hash(folder, *sorted(read_config(folder)["modules"]))


def _weights(folder: str | Path, config: Mapping[str, Any], name: str) -> Path:
    path = weights_path(folder, name)
    if name not in config["modules"] or not path.is_file():
        held = ", ".join(module for module in config["modules"] if weights_path(folder, module).is_file()) or "nothing"
        raise UserError(f"{folder} holds no trained '{name}' (it holds: {held}). Distil with the modules that need it.")
    return path


def _geometry(folder: str | Path, config: Mapping[str, Any]) -> Geometry:
    try:
        return Geometry(**config["geometry"])
    except TypeError as error:
        raise UserError(f"{Path(folder) / CONFIG}: 'geometry' is not one ({error}). {MEND}") from None
