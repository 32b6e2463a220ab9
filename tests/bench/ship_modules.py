"""Puts trained modules of one or more checkpoints into one folder, in 16 bits, to be carried by the package.

    python tests/bench/ship_modules.py FOLDER [FOLDER ...] --to platform/indexmem/assets/testbed-modules

The first folder that holds a module gives it; its record of how it was trained stands beside it, and the first folder's
is the checkpoint's own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from indexmem.eviction.checkpoint import CONFIG, read_config
from indexmem.files import draft_of, write_whole


def without_paths(trained: dict[str, Any]) -> dict[str, Any]:
    """The record without the folders of the machine that trained."""
    indexer = {name: value for name, value in trained.get("indexer", {}).items() if name != "checkpoint"}
    return {**trained, "indexer": indexer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    configs = {folder: read_config(folder) for folder in arguments.folders}
    first = configs[arguments.folders[0]]
    modules: dict[str, Any] = {}
    arguments.to.mkdir(parents=True, exist_ok=True)
    for folder, config in configs.items():
        assert config["geometry"] == first["geometry"], f"{folder} is of another model"
        for name, described in config["modules"].items():
            if name in modules:
                continue
            trained = described.get("trained", config["trained"])  # of a shipped folder, each module's own
            modules[name] = {**described, "trained": without_paths(trained)}
            halves = {key: tensor.half() for key, tensor in load_file(folder / f"{name}.safetensors").items()}
            with draft_of(arguments.to / f"{name}.safetensors") as draft:
                save_file(halves, draft)
            print(f"{name}: {(arguments.to / f'{name}.safetensors').stat().st_size / 2**20:.2f} MiB from {folder}")
    write_whole(
        arguments.to / CONFIG,
        json.dumps({**first, "modules": modules, "trained": without_paths(first["trained"])}, indent=1) + "\n",
    )


if __name__ == "__main__":
    main()
