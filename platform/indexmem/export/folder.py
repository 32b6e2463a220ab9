"""`indexmem export`: a trained indexer as a folder for serving engines.

The folder holds the weights, a config.json with a format number, and export/portable.py as `indexmem_export.py`, which
reads both and needs torch and safetensors alone. It appears whole or not at all.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from indexmem import __version__
from indexmem.config.modules import FLOOR
from indexmem.config.schema import EvictionConfig
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import read_config, weights_hash
from indexmem.eviction.indexer import INDEXER, IndexerStack
from indexmem.eviction.methods.learned import selection_of
from indexmem.eviction.modules_source import local_or_downloaded
from indexmem.export import portable
from indexmem.export.onnx import write_onnx
from indexmem.files import draft_folder, exists
from indexmem.models.assets import shipped_modules

MODULE = "indexmem_export.py"


def export_checkpoint(checkpoint: str, folder: Path, onnx: bool = False) -> Path:
    """Write what a serving engine needs of a checkpoint's indexer to a new folder, and return it.

    `checkpoint`: a folder, a shipped name or a hub id. Raises UserError where that holds no indexer or cannot be read,
    where `folder` exists, and with `onnx` where ONNX cannot hold the indexer or its package is missing.
    """
    source = _source(checkpoint)
    indexers = IndexerStack.load(source)
    if exists(folder):
        raise UserError(f"{folder} exists already. Name a new folder: an export replaces nothing.")
    with draft_folder(folder) as draft:
        weights = {name: tensor.contiguous() for name, tensor in indexers.state_dict().items()}
        save_file(weights, draft / portable.WEIGHTS)
        (draft / portable.CONFIG).write_text(json.dumps(_config(checkpoint, source, indexers), indent=2) + "\n")
        (draft / MODULE).write_bytes(Path(portable.__file__).read_bytes())
        if onnx:
            write_onnx(portable.ExportedIndexer.load(draft), draft / "scorer.onnx")
    return folder


def _source(checkpoint: str) -> Path:
    try:
        return shipped_modules().get(checkpoint) or local_or_downloaded(checkpoint)
    except UserError as error:
        raise UserError(f"{error} Modules that ship: {', '.join(shipped_modules())}.") from None


def _config(checkpoint: str, source: Path, indexers: IndexerStack) -> dict[str, Any]:
    """What the portable module builds itself from, and where the weights come from."""
    trained = read_config(source)["trained"]
    backbone = trained.get("backbone")
    selection = selection_of(None, FLOOR, trained, indexers.shape)
    sizes = ("model_type", "layers", "hidden_size", "heads", "kv_heads", "head_dim")
    return {
        "format": portable.FORMAT,
        "written_by": f"indexmem {__version__}",
        "checkpoint": {"name": Path(checkpoint).name, "weights": weights_hash(source, INDEXER), "backbone": backbone},
        "model": {name: getattr(indexers.geometry, name) for name in sizes},
        "indexer": asdict(indexers.shape),
        "keep": {
            "share": selection.across,
            "floor": FLOOR,
            "sinks": EvictionConfig.model_fields["sinks"].default,
        },
    }
