"""Rows belong to weights: every byte of a model folder that decides what is computed is in its fingerprint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from indexmem.config.schema import ModelConfig
from indexmem.models import backbone, folder_hash
from indexmem.models.backbone import model_fingerprint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder, settled for an hour but for ctime, which cannot be set; hashes go to a fresh cache."""
    monkeypatch.setenv("INDEXMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folder_hash, "SETTLED_SECONDS", 0.0)
    model = tmp_path / "model"
    (model / "code").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(os.urandom(20 * 2**20))  # more than a piece
    (model / "modeling_own.py").write_text("SCALE = 1\n")
    (model / "code" / "parts.py").write_text("SCALE = 1\n")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    return model


def identity(folder: Path) -> str:
    return model_fingerprint(ModelConfig(id=str(folder)))


def change(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("place", [0, 100_000, 2**21 + 7, 16 * 2**20 + 1, 20 * 2**20 - 1])
def test_every_byte_of_the_weights_counts(folder: Path, place: int):
    before = identity(folder)
    assert identity(folder) == before
    change(folder / "model.safetensors", place)
    assert identity(folder) != before
    change(folder / "model.safetensors", place)
    assert identity(folder) == before, "content alone counts"


@pytest.mark.parametrize("name", ["modeling_own.py", "code/parts.py", "chat_template.jinja", "config.json"])
def test_code_template_and_settings_count(folder: Path, name: str):
    before = identity(folder)
    change(folder / name, 0)
    assert identity(folder) != before


def test_what_decides_nothing_does_not_count(folder: Path, tmp_path: Path):
    before = identity(folder)
    (folder / "README.md").write_text("what it is")
    assert identity(folder) == before
    assert identity(folder.rename(tmp_path / "elsewhere")) == before


def test_a_file_is_read_again_only_when_it_looks_different(folder: Path, monkeypatch: pytest.MonkeyPatch):
    before, reads = identity(folder), []
    hash_of = folder_hash._piece_hash
    monkeypatch.setattr(
        folder_hash, "_piece_hash", lambda path, start: (reads.append(path.name), hash_of(path, start))[1]
    )
    assert identity(folder) == before
    assert not reads
    stat = (folder / "model.safetensors").stat()
    change(folder / "model.safetensors", 5)
    os.utime(folder / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # hides the change
    assert identity(folder) != before
    assert set(reads) == {"model.safetensors"}


def test_a_file_that_just_changed_is_not_trusted_to_its_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(folder_hash, "SETTLED_SECONDS", 60.0)
    identity(folder)
    assert not list((tmp_path / "cache").rglob("*"))


def test_code_of_another_repository_counts(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names = '"AutoModelForCausalLM": "org/code--modeling_x.X", "AutoTokenizer": ["modeling_own.T", null]'
    (folder / "config.json").write_text(f'{{"model_type": "llama", "auto_map": {{{names}}}}}')
    asked, commit = [], "a" * 40

    def cached_file(repository: str, name: str) -> str:
        asked.append((repository, name))
        return str(tmp_path / "snapshots" / commit / name)

    monkeypatch.setattr(backbone, "cached_file", cached_file)
    own_code = ModelConfig(id=str(folder), trust_remote_code=True)
    before = model_fingerprint(own_code)
    assert asked == [("org/code", "modeling_x.py")]
    assert model_fingerprint(own_code) == before != identity(folder)
    commit = "b" * 40
    assert model_fingerprint(own_code) != before
