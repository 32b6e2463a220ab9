"""Paths as people write them, and files that appear whole or not at all, even when their writer is killed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from indexmem.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A full or read-only disk, a file where a folder should be, no right to it: a traceback would explain nothing.
FOLDER_FAULTS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}
TEMPORARY = ".tmp-"  # how names of drafts begin; what a killed process has left of them


def expanded(path: str | Path) -> Path:
    """`path` with the home folder that a leading ~ or ~NAME stands for. Raises UserError where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"'{path}': no home folder of this user is known here. Write the folder in full.") from None


def exists(path: Path) -> bool:
    """As `path.exists()`, and False for what is too long to be a name."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def folder_at(path: Path) -> Path:
    """`path`, which need not exist. Raises UserError where it, or what it would lie in, is no folder."""
    for place in (path, *path.parents):
        if exists(place):
            if not place.is_dir():
                raise UserError(f"{path} cannot be a folder: {place} is a file. Name another folder.")
            break
    return path


def check_writable(folder: Path) -> None:
    """Make the folder, write to it and remove what was written. Raises UserError that says why that is not possible."""
    probe = folder / f"{TEMPORARY}probe-{uuid.uuid4().hex}"
    try:
        write_whole(probe, b"")
        probe.unlink()
    except OSError as error:
        raise UserError(unwritable(error)) from None


def unwritable(error: OSError) -> str:
    """What a person can do about a file that cannot be written, or read."""
    return (
        f"{error.filename or 'A file'}: {error.strerror or error}. Free space there, or set run.root (INDEXMEM_HOME, "
        "INDEXMEM_CACHE) to a folder that you may write to. What is finished is stored; the same command goes on."
    )


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A name beside `path`, in a folder that is made if need be; what the block writes there takes `path`'s place.

    When the block raises, `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")  # no ending: readers look for "*.json" and the like
    try:
        yield draft
        os.replace(draft, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk does not say where
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A fresh folder beside `target`, which does not exist; after the block it has that name.

    When the block raises, nothing is left.
    """
    draft = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        yield draft
        os.rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def copy_of(source: Path, target: Path, leave_out: Sequence[str] = ()) -> Iterator[Path]:
    """A copy of a folder, without names that match `leave_out`. After the block it takes the place of `target`.

    When the block raises, `target` stays as it was.
    """
    draft = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        shutil.copytree(source, draft, ignore=shutil.ignore_patterns(*leave_out))
        yield draft
        shutil.rmtree(target, ignore_errors=True)
        os.replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def copy_folder(source: Path, target: Path, leave_out: Sequence[str] = ()) -> None:
    """`copy_of`, with nothing more to do to the copy."""
    with copy_of(source, target, leave_out):
        pass


def sha256_of(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_whole(path: Path, content: str | Buffer, *, durable: bool = False) -> None:
    """Replace `path` in one step; text is UTF-8. `durable`: the content is on the disk before the name is."""
    data = content.encode() if isinstance(content, str) else content
    with draft_of(path) as draft, draft.open("wb") as stream:
        stream.write(data)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
