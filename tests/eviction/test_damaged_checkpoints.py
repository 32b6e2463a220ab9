"""Checkpoints that are not what was written: one message with the file, what is wrong and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from press_cases import checkpoint, geometry_of
from safetensors.torch import load_file, save_file

from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import all_weights_hash
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.press import IndexerPress, IndexMemPress

CONFIG, WEIGHTS = "config.json", "indexer.safetensors"


def as_method(folder: Path) -> None:
    make_method(MethodConfig(name="indexer"), MethodContext(geometry_of(), checkpoint=str(folder)))


def with_memory(folder: Path) -> None:
    make_method(MethodConfig(name="indexmem"), MethodContext(geometry_of(), checkpoint=str(folder)))


READERS = (IndexerPress.from_pretrained, IndexMemPress.from_pretrained, as_method, with_memory)


def edited(path: Path, change) -> None:
    """The JSON file with `change` made to what it holds."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def tensors(path: Path, change) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def first(weights: dict) -> str:
    return min(weights)


DAMAGES = {
    "an empty config": (CONFIG, lambda path: path.write_text(""), "is damaged: Expecting value"),
    "a config cut off": (CONFIG, lambda path: path.write_bytes(path.read_bytes()[:-40]), "is damaged: "),
    "a config not in UTF-8": (CONFIG, lambda path: path.write_bytes(b'{"a": "\xff"}'), "is damaged: "),
    "a list": (CONFIG, lambda path: path.write_text("[]"), "expected a checkpoint of format 2, got format None"),
    "another format": (CONFIG, lambda path: edited(path, lambda c: c.update(format=9)), "format 2, got format 9"),
    "no geometry": (CONFIG, lambda path: edited(path, lambda c: c.pop("geometry")), "has no 'geometry'"),
    "no record": (CONFIG, lambda path: edited(path, lambda c: c.pop("trained")), "has no 'trained'"),
    "no modules": (CONFIG, lambda path: edited(path, lambda c: c.pop("modules")), "has no 'modules'"),
    "half a geometry": (
        CONFIG,
        lambda path: edited(path, lambda c: c["geometry"].pop("layers")),
        "'geometry' is not one",
    ),
    "no shape": (CONFIG, lambda path: edited(path, lambda c: c["modules"]["indexer"].pop("shape")), "has no 'shape'"),
    "an unknown shape": (
        CONFIG,
        lambda path: edited(path, lambda c: c["modules"]["indexer"]["shape"].update(colour="red")),
        "no 'indexer' can be built of shape .*colour",
    ),
    "no weights": (WEIGHTS, lambda path: path.unlink(), "holds no trained 'indexer' .it holds: memory-indexer"),
    "empty weights": (WEIGHTS, lambda path: path.write_bytes(b""), "is damaged: "),
    "weights cut off": (WEIGHTS, lambda path: path.write_bytes(path.read_bytes()[:-40]), "is damaged: "),
    "a missing tensor": (WEIGHTS, lambda path: tensors(path, lambda w: w.pop(first(w))), "is missing there and "),
    "an extra tensor": (
        WEIGHTS,
        lambda path: tensors(path, lambda w: w.update(z=torch.ones(1))),
        "z is .1,. there and unknown",
    ),
    "another size": (
        WEIGHTS,
        lambda path: tensors(path, lambda w: w.update({first(w): torch.ones(2, 3)})),
        r"is \(2, 3\) there and ",
    ),
}


@pytest.mark.parametrize("read", READERS, ids=lambda read: getattr(read, "__qualname__", ""))
@pytest.mark.parametrize("name", DAMAGES)
def test_the_file_is_named_with_what_is_wrong_and_what_to_do(tmp_path, name, read):
    folder = checkpoint(tmp_path, geometry_of())
    read(folder)
    file, damage, complaint = DAMAGES[name]
    damage(folder / file)
    with pytest.raises(UserError, match=complaint) as caught:
        read(folder)
    said = str(caught.value)
    assert str(folder if name == "no weights" else folder / file) in said
    assert "train again" in said or "Distil" in said or "expected a checkpoint" in said


def test_the_identity_of_a_checkpoint_without_all_of_its_weights(tmp_path):
    folder = checkpoint(tmp_path, geometry_of())
    (folder / "memory-snapkv.safetensors").unlink()
    with pytest.raises(UserError, match=r"no trained 'memory-snapkv' .it holds: indexer, memory-indexer"):
        all_weights_hash(folder)
