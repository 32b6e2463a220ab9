"""What is given to the board, NAME=PLACE or PLACE: a run root or result store, files of rows, results of kvpress.

A URI is copied first, without what the board does not read: through pyarrow (s3://, gs://, ...), else through fsspec.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, FSSpecHandler, PyFileSystem

from indexmem.board.files import KINDS_OF_FILES, read_board_file
from indexmem.board.kvpress import CONFIG, METRICS, read_kvpress
from indexmem.board.stores import read_store
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.texts.rows import file_kind

READ = (*KINDS_OF_FILES, ".yaml", ".json", ".csv", ".gz", ".zst")
NOT_READ = {"retention", "damaged", "checkpoints", "mlflow"}
_NAMED = re.compile(r"(?P<who>[^=/\\:]{1,80})=(?P<place>.+)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """Rows of one place, BOARD_SCHEMA, and what kinds of results they were read from."""

    place: str
    who: str
    rows: pa.Table
    kinds: tuple[str, ...]


def read_source(text: str) -> Source:
    """All rows of a place. Raises UserError where there are none, or for what is not as it should be."""
    named = _NAMED.fullmatch(text)
    place = named["place"] if named else text
    who = named["who"].strip() if named else _own_name(place)
    with _at_hand(place) as path:
        found = list(_found(path, who))
    if not found:
        raise UserError(
            f"{place}: no results. Expected a run root or its results/, a .jsonl or .parquet file of rows "
            f"(docs/board.md), or a folder of kvpress' evaluation with {CONFIG} and {METRICS}."
        )
    rows = pa.concat_tables([rows for _, rows in found])
    told = rows["who"].combine_chunks().fill_null(who)
    return Source(
        place, who, rows.set_column(rows.schema.get_field_index("who"), "who", told), tuple(k for k, _ in found)
    )


def check_names(texts: Sequence[str]) -> None:
    """Raises UserError where two places that nobody named would go by one name."""
    places = [text for text in dict.fromkeys(texts) if not _NAMED.fullmatch(text)]
    for name, count in Counter(map(_own_name, places)).items():
        if count > 1:
            raise UserError(
                f"{count} stores would be called '{name}'. Name them: WHO=PLACE, such as alice={places[0]}."
            )


def _own_name(place: str) -> str:
    """The last part of a place that says something."""
    parts = [part for part in PurePosixPath(place).parts if part not in ("runs", "results", "/", ".", "..")]
    return parts[-1] if parts else place


def _found(path: Path, who: str) -> Iterator[tuple[str, pa.Table]]:
    """(kind, rows) of all that lies at a path: a store is not searched for files of rows."""
    if path.is_file():
        yield "board rows", read_board_file(path)
        return
    for store in (path, path / "results"):
        if (store / "rows").is_dir():
            yield "indexmem", read_store(store)
            return
    for config in sorted(path.rglob(CONFIG)):
        if (config.parent / METRICS).is_file():
            yield "kvpress", read_kvpress(config.parent, who)
    for file in sorted(path.iterdir()) if path.is_dir() else ():
        if file.is_file() and file_kind(file) in KINDS_OF_FILES:
            yield "board rows", read_board_file(file)


@contextmanager
def _at_hand(place: str) -> Iterator[Path]:
    """The place as a local path."""
    if "://" not in place:
        path = expanded(place)
        if not path.exists():
            raise UserError(f"There is nothing at {path}. Name a folder, a file or a URI such as s3://bucket/results.")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="indexmem-board-") as folder:
        try:
            yield _copied(*_filesystem(place), Path(folder))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{place} cannot be read: {error}") from error


def _filesystem(uri: str) -> tuple[FileSystem, str]:
    try:
        filesystem, base = FileSystem.from_uri(uri)
        return filesystem, str(base)
    except (pa.ArrowException, ValueError):  # a scheme that pyarrow does not know
        from fsspec.core import url_to_fs  # imported here: only such places need it

        try:
            found, base = url_to_fs(uri)
        except (ValueError, ImportError) as error:
            raise UserError(f"{uri}: {error}") from None
        return PyFileSystem(FSSpecHandler(found)), str(base)


def _copied(filesystem: FileSystem, base: str, folder: Path) -> Path:
    """The files that the board reads, under `folder`; the path of what stands for `base` there."""
    found = filesystem.get_file_info(base)
    one = found.type == FileType.File
    infos = [found] if one else filesystem.get_file_info(FileSelector(base, recursive=True))
    base = str(PurePosixPath(base).parent) if one else base
    for info in infos:
        place = PurePosixPath(info.path).relative_to(base)
        wanted = info.type == FileType.File and place.suffix in READ and not NOT_READ & {*place.parts}
        if wanted and ".." not in place.parts:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            with filesystem.open_input_stream(info.path, compression=None) as stream:
                (folder / place).write_bytes(stream.read())
    return folder / PurePosixPath(found.path).name if one else folder
