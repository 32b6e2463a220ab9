"""Documents in files and folders, one at a time: no file is read into memory as a whole.

A .txt or .md file is one document; a .jsonl or .parquet file has one per row. All but parquet may be compressed (.gz,
.zst). A folder is read with its subfolders, in the order of the paths; hidden files are left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.unicode import HALF_A_CHARACTER, well_formed

FIELDS = ("text", "context")  # where a row's text is, the first that it has
COMPRESSED = (".gz", ".zst")
PIECE = 2**23  # characters: a longer .txt is cut at a line's end, so that it need not be tokenised at once
PARQUET_ROWS = 256  # decoded at a time
EXAMPLE = "distill.texts='[{name: FILE, column: COLUMN}]'"

Reader = Callable[[Path, Sequence[str]], Iterator[str]]


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
        if _kind(file) not in READERS:
            raise UserError(f"Cannot read text from '{file}'. Expected {EXPECTED}.")
    return files


def read_file(path: Path, fields: Sequence[str] = FIELDS) -> Iterator[str]:
    """The documents of a file that `list_files` gave; the text of a row is in the first of `fields` that it has.

    Raises UserError while it reads, when the file is not what its name says or a row has no text.
    """
    try:
        yield from READERS[_kind(path)](path, fields)
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8: {error.reason}. Save it as UTF-8.") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"'{path}' cannot be read as {_kind(path).lstrip('.')}: {error}") from error


def _kind(path: Path) -> str:
    """Extension without that of the compression; parquet compresses by itself."""
    last = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if last in COMPRESSED and inner != ".parquet" else last


def _open(path: Path) -> io.TextIOWrapper:
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    return io.TextIOWrapper(pa.input_stream(path, compression=compression), encoding="utf-8-sig")


def _read_plain(path: Path, fields: Sequence[str]) -> Iterator[str]:
    with _open(path) as file:
        while piece := file.read(PIECE):
            yield piece + file.readline()


def _read_jsonl(path: Path, fields: Sequence[str]) -> Iterator[str]:
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_text(line, fields, f"{path}:{number}")


def _json_text(line: str, fields: Sequence[str], where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}. Expected one object per line.") from error
    values = row if isinstance(row, dict) else {}
    text = next((values[name] for name in fields if name in values), None)
    if not isinstance(text, str):
        wanted = " or ".join(f'{{"{name}": "..."}}' for name in fields)
        raise UserError(f"{where} has no text. Expected {wanted}, got {line[:80]!r}. Another field: {EXAMPLE}.")
    if well_formed(text) != text:
        raise UserError(f"{where} has {HALF_A_CHARACTER}.")
    return text


def _read_parquet(path: Path, fields: Sequence[str]) -> Iterator[str]:
    with pq.ParquetFile(path, memory_map=True) as file:
        columns = file.schema_arrow.names
        column = next((name for name in fields if name in columns), None)
        if column is None:
            wanted = " or ".join(f"'{name}'" for name in fields)
            raise UserError(f"'{path}' has no column {wanted}; columns: {columns}. Name one: {EXAMPLE}.")
        for batch in file.iter_batches(PARQUET_ROWS, columns=[column]):
            texts = [value for value in batch.column(0).to_pylist() if value is not None]
            if not all(isinstance(text, str) for text in texts):
                raise UserError(f"Column '{column}' of '{path}' holds more than text. Expected strings.")
            yield from texts


READERS: Mapping[str, Reader] = MappingProxyType(
    {".txt": _read_plain, ".md": _read_plain, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
)
EXPECTED = f"a file that ends in {', '.join(READERS)}, of text also with {' or '.join(COMPRESSED)} after it"
