"""Documents in files and folders, and in data sets of the hub, one at a time: nothing is read into memory as a whole.

A .txt or .md file is one document; a .jsonl or .parquet file has one per row. All but parquet may be compressed (.gz,
.zst). A folder is read with its subfolders, in the order of the paths; hidden files are left out. A row whose text is
null is left out.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from indexmem.config.text import TextConfig
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.texts.rows import (
    COMPRESSED,
    PlacedRow,
    file_kind,
    hub_rows,
    jsonl_rows,
    open_text,
    parquet_rows,
    readable,
)
from indexmem.unicode import HALF_A_CHARACTER, well_formed

TEXT_FIELDS = ("text", "context")  # where a row's text is, the first that it has
PIECE = 2**23  # characters: a longer .txt is cut at a line's end, so that it need not be tokenised at once
NAME_A_COLUMN = "distill.texts='[{name: FILE, column: COLUMN}]'"
HUB_INSTEAD = (
    "Check name, subset, split and revision, log in with `hf auth login` if it is not public, or download it and name "
    "the folder: distill.texts='[FOLDER]'"
)

TextReader = Callable[[Path, Sequence[str]], Iterator[str]]


def list_files(name: str) -> list[Path]:
    """The file `name`, or all files of the folder `name`. Raises UserError when there is none, or one of a kind that
    is not read.
    """
    path = expanded(name)
    if path.is_file():
        files = [path]
    else:
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not files:
            raise UserError(f"The folder '{name}' holds no files. Expected {EXPECTED}.")
    for file in files:
        if file_kind(file) not in TEXT_READERS:
            raise UserError(f"Cannot read text from '{file}'. Expected {EXPECTED}.")
    return files


def read_file(path: Path, fields: Sequence[str] = TEXT_FIELDS) -> Iterator[str]:
    """The documents of a file that `list_files` gave; the text of a row is in the first of `fields` that it has.

    Raises UserError while it reads, when the file is not what its name says or a row has no text.
    """
    with readable(path):
        yield from TEXT_READERS[file_kind(path)](path, fields)


def read_hub_texts(text: TextConfig, fields: Sequence[str]) -> Iterator[str]:
    """The documents of a data set on the hub, streamed. Raises UserError when it cannot be had or a row has no text."""
    assert text.hub is not None
    return _texts_of(hub_rows(text.hub, text.split, HUB_INSTEAD, text.subset, text.revision), fields)


def _read_plain(path: Path, fields: Sequence[str]) -> Iterator[str]:
    with open_text(path) as file:
        while piece := file.read(PIECE):
            yield piece + file.readline()


def _read_jsonl(path: Path, fields: Sequence[str]) -> Iterator[str]:
    with open_text(path) as lines:
        yield from _texts_of(jsonl_rows(lines, str(path), json.loads), fields)


def _read_parquet(path: Path, fields: Sequence[str]) -> Iterator[str]:
    return _texts_of(parquet_rows(path, fields), fields)


def _texts_of(rows: Iterable[PlacedRow], fields: Sequence[str]) -> Iterator[str]:
    for where, row in rows:
        values = row if isinstance(row, dict) else {}
        field = next((name for name in fields if name in values), None)
        if field is None or not isinstance(values[field], str | None):
            raise UserError(
                f"{where} has no text. Expected it in {' or '.join(map(repr, fields))}, got {reprlib.repr(row)}. "
                f"If it is in another column: {NAME_A_COLUMN}."
            )
        text = values[field]
        if text is None:
            continue
        if well_formed(text) != text:
            raise UserError(f"{where} has {HALF_A_CHARACTER}.")
        yield text


TEXT_READERS: Mapping[str, TextReader] = MappingProxyType(
    {".txt": _read_plain, ".md": _read_plain, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
)
EXPECTED = f"a file that ends in {', '.join(TEXT_READERS)}, of text also with {' or '.join(COMPRESSED)} after it"
