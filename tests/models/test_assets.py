"""Archives come from a real pip reading a local folder, so each failure is pip's own and no network is needed."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import types
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from indexmem.archives import Archive, ensure_archive, read_members
from indexmem.errors import UserError
from indexmem.models import assets
from indexmem.models.assets import BuiltinModel, ensure_model

CONTENT = b"weights\n" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source; assets go to a fresh home."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("INDEXMEM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def wheel(index: Path) -> Archive:
    """A published wheel with one data file."""
    path = index / "tinyasset-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinyasset/model.gguf", CONTENT)
        archive.writestr("tinyasset-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinyasset\nVersion: 1.0\n")
        archive.writestr(
            "tinyasset-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tinyasset-1.0.dist-info/RECORD", "")
    return Archive("tinyasset==1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def builtin(wheel: Archive, monkeypatch: pytest.MonkeyPatch) -> str:
    """A built-in model whose archive is `wheel`."""
    model = BuiltinModel(archive=wheel, member="tinyasset/model.gguf", question="?", answer="!")
    monkeypatch.setattr(assets, "BUILTIN_MODELS", {"tiny": model})
    return "tiny"


def converter(monkeypatch: pytest.MonkeyPatch, convert, verify=lambda *_: None) -> None:
    module = types.ModuleType("indexmem.models.gguf")
    module.convert, module.verify_model = convert, verify  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "indexmem.models.gguf", module)


def write_model(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())


def kept(tmp_path: Path) -> list[str]:
    """What lies under the home, apart from lock files and empty folders."""
    return sorted(p.name for p in (tmp_path / "home").rglob("*") if p.is_file() and p.suffix != ".lock")


def no_subprocess(*_, **__) -> None:
    raise AssertionError("a cached asset needs no subprocess")


def test_an_archive_is_fetched_once(wheel: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_members(wheel, "tinyasset/*") == {"tinyasset/model.gguf": CONTENT}
    assert kept(tmp_path) == [wheel.filename]
    monkeypatch.setattr(subprocess, "run", no_subprocess)
    assert ensure_archive(wheel).parent == tmp_path / "home" / "assets" / "archives"


def test_another_checksum_is_refused_and_the_file_not_kept(wheel: Archive, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"(?s)DO NOT MATCH THE HASHES.*{wheel.sha256}"):
        ensure_archive(replace(wheel, sha256="0" * 64))
    assert kept(tmp_path) == []


def test_an_sdist_of_another_checksum_is_not_executed(index: Path, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    setup = f"open({str(executed)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
    with tarfile.open(index / "evil-1.0.tar.gz", "w:gz") as sdist:
        for name, text in {"setup.py": setup, "PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"}.items():
            member = tarfile.TarInfo(f"evil-1.0/{name}")
            member.size = len(text)
            sdist.addfile(member, io.BytesIO(text.encode()))
    with pytest.raises(UserError, match="DO NOT MATCH THE HASHES"):
        ensure_archive(Archive("evil==1.0", "evil-1.0.tar.gz", "0" * 64))
    assert not executed.exists()


def test_a_damaged_archive_is_fetched_again(wheel: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ensure_archive(wheel)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_members(wheel, "*.gguf") == {"tinyasset/model.gguf": CONTENT}
    assert "is damaged" in capsys.readouterr().err


def test_without_an_index_the_message_says_what_to_copy_where(index: Path, wheel: Archive, tmp_path: Path) -> None:
    carried = (index / wheel.filename).rename(tmp_path / wheel.filename)
    with pytest.raises(UserError, match="No matching distribution") as error:
        ensure_archive(wheel)
    folder = tmp_path / "home" / "assets" / "archives"
    assert f"copy {wheel.filename} (sha256 {wheel.sha256}) to {folder}" in str(error.value)
    carried.rename(folder / wheel.filename)
    assert ensure_archive(wheel) == folder / wheel.filename


def test_two_processes_fetch_once(wheel: Archive) -> None:
    program = f"from indexmem.archives import Archive, ensure_archive; ensure_archive({wheel!r})"
    processes = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    messages = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], messages
    assert "".join(messages).count("fetching") == 1


def test_a_model_is_converted_once(builtin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter(monkeypatch, write_model)
    folder = ensure_model(builtin)
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert kept(tmp_path) == ["model.safetensors", "tinyasset-1.0-py3-none-any.whl"], "the GGUF copy is temporary"
    monkeypatch.setattr(subprocess, "run", no_subprocess)
    converter(monkeypatch, no_subprocess)
    assert ensure_model(builtin) == folder


@pytest.mark.parametrize("stage", ["convert", "verify"])
def test_a_failed_conversion_leaves_no_model(
    builtin: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_) -> None:
        raise KeyboardInterrupt

    def write_half(gguf: Path, folder: Path) -> None:
        write_model(gguf, folder)
        fail()

    converter(monkeypatch, *{"convert": (write_half,), "verify": (write_model, fail)}[stage])
    with pytest.raises(KeyboardInterrupt):
        ensure_model(builtin)
    assert kept(tmp_path) == ["tinyasset-1.0-py3-none-any.whl"]
    monkeypatch.setattr(subprocess, "run", no_subprocess)
    converter(monkeypatch, write_model)
    assert ensure_model(builtin).is_dir(), "the download is not repeated"


def test_a_killed_conversion_is_not_trusted_and_holds_no_lock(
    builtin: str, wheel: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"""
        import os, signal, sys, types
        from indexmem.models import assets
        from indexmem.archives import Archive
        from indexmem.models.assets import BuiltinModel

        def convert(gguf, folder):
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        sys.modules["indexmem.models.gguf"] = gguf = types.ModuleType("gguf")
        gguf.convert, gguf.verify_model = convert, None
        assets.BUILTIN_MODELS = {{"tiny": {assets.BUILTIN_MODELS[builtin]!r}}}
        assets.ensure_model("tiny")
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "model.safetensors" in kept(tmp_path), "the killed process left its half"
    converter(monkeypatch, write_model)
    assert (ensure_model(builtin) / "model.safetensors").read_bytes() == CONTENT
    assert kept(tmp_path) == ["model.safetensors", wheel.filename], "and the next one removed it"


def test_unknown_models_are_named_with_the_known_ones() -> None:
    assert not assets.is_builtin("gpt-5")
    with pytest.raises(UserError, match=r"'gpt-5'.*smollm2-135m-instruct"):
        ensure_model("gpt-5")


def test_the_built_in_models_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        assets.BUILTIN_MODELS["other"] = assets.BUILTIN_MODELS["smollm2-135m-instruct"]  # type: ignore[index]
