"""Identity of a model folder: a hash of every byte that decides what the model computes and how it reads text.

A file is hashed in pieces, several at a time, once: its hash is kept under the cache folder for as long as the file
looks untouched.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from indexmem.config.spec import cache_folder, content_hash
from indexmem.files import write_whole

DECIDING = (  # endings of files that transformers may load from a model's folder
    *(".safetensors", ".bin", ".pt", ".pth", ".gguf"),
    *(".json", ".model", ".txt", ".jinja", ".tiktoken"),
    ".py",
)
PIECE_BYTES = 16 * 2**20
SETTLED_SECONDS = 2.0  # a file changed more recently may change again without its time telling


def folder_hash(folder: Path) -> str:
    """Hash of names and contents of the folder's weights, settings, tokenizer and code, code in subfolders included."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in _deciding(folder):
            digest.update(f"{path.relative_to(folder).as_posix()}:{_file_hash(path, pool)}\n".encode())
    return digest.hexdigest()


def _deciding(folder: Path) -> Iterator[Path]:
    """The files in an order that every machine agrees on."""
    beside = (path for path in folder.glob("*") if path.suffix in DECIDING and path.is_file())
    yield from sorted({*beside, *folder.rglob("*.py")}, key=lambda path: path.relative_to(folder).parts)


def _file_hash(path: Path, pool: ThreadPoolExecutor) -> str:
    """Hash of the whole content, from the cache while path, size, times and inode are those that it was made of."""
    stat = path.stat()
    looks = [str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    known = cache_folder() / "hashes" / content_hash(looks, length=32)
    if known.is_file() and (stored := known.read_text()):
        return stored
    pieces = pool.map(_piece_hash, repeat(path), range(0, stat.st_size, PIECE_BYTES))
    found = hashlib.sha256(b"".join(pieces)).hexdigest()
    if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_SECONDS:
        write_whole(known, found)
    return found


def _piece_hash(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(PIECE_BYTES)).digest()
