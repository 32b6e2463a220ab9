"""Weights that this package carries, one folder each under `assets/`: models in Hugging Face layout, trained modules.

A model has its name as soon as its folder holds weights, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from indexmem.errors import UserError
from indexmem.files import expanded

FOLDER = Path(__file__).parents[1] / "assets"
WEIGHTS = "model.safetensors"
TESTBED = "testbed"
MODULES = "testbed-modules"  # indexer, memories and Locret heads of the testbed; also those of SmolLM2
TRAINED = "indexer.safetensors"  # what every folder of trained modules holds
MADE_BY: Mapping[str, str] = MappingProxyType({TESTBED: "python jobs/pretrain_testbed.py sweeps/testbed.yaml --ship"})


def shipped_models() -> Mapping[str, Path]:
    """Folders of the models whose weights are here, by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob(f"*/{WEIGHTS}"))}


def shipped_modules() -> Mapping[str, Path]:
    """Folders of trained modules that are here, by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob(f"*/{TRAINED}"))}


def checkpoint_folder(name: str) -> Path:
    """Folder of trained modules: those that this package carries by their name, all others by their path."""
    return shipped_modules().get(name) or expanded(name).absolute()


def check_shipped(name: str) -> None:
    """Raises UserError for a model that this package could carry but does not."""
    if name in MADE_BY and name not in shipped_models():
        raise UserError(
            f"This installation has no weights of the model '{name}': {FOLDER / name / WEIGHTS} is missing. "
            f"Train and ship it with `{MADE_BY[name]}`, or set model.id to a folder that pre-training wrote."
        )
