"""Rows of JSON lines, of parquet and of data sets on the Hugging Face hub, one at a time, for texts and for benchmarks.

Only data is read: no code of a data set is ever run. Each row comes with its place, such as "FILE, line 3".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from indexmem.errors import UserError
from indexmem.fetching import about_to_fetch
from indexmem.files import exists, expanded
from indexmem.unicode import HALF_A_CHARACTER, well_formed

COMPRESSED: Mapping[str, str] = MappingProxyType({".gz": "gzip", ".zst": "zstd"})
PARQUET_ROWS = 256  # decoded at a time

PlacedRow = tuple[str, Any]  # where it stands, the row: a mapping, if the file is what it should be


def file_kind(path: Path) -> str:
    """Extension without that of the compression; parquet compresses by itself."""
    last, inner = path.suffix.lower(), Path(path.stem).suffix.lower()
    return inner if last in COMPRESSED and inner != ".parquet" else last


def open_text(path: Path) -> io.TextIOWrapper:
    """A UTF-8 file to read, decompressed if its name says so."""
    stream = pa.input_stream(path, compression=COMPRESSED.get(path.suffix.lower()))
    return io.TextIOWrapper(stream, encoding="utf-8-sig")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises UserError in place of what is raised inside by a file that is not what its name says."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8: {error.reason}. Save it as UTF-8.") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"'{path}' cannot be read as {file_kind(path).lstrip('.')}: {error}") from error


def jsonl_rows(lines: Iterable[str], source: str, parse: Callable[[str], Any]) -> Iterator[PlacedRow]:
    """What `parse` makes of each line but blank ones. Raises UserError for a line that is not JSON."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = parse(line)
            except ValueError as error:
                problem = error.msg if isinstance(error, json.JSONDecodeError) else error
                raise UserError(f"{source}, line {number}: not valid JSON ({problem}): {line:.80}") from None
            yield f"{source}, line {number}", row


def parquet_rows(path: Path, wanted: Sequence[str] = ()) -> Iterator[PlacedRow]:
    """All rows. Only the first column of `wanted` that the file has is read, where it has one of them."""
    with pq.ParquetFile(path, memory_map=True) as file:
        column = next((name for name in wanted if name in file.schema_arrow.names), None)
        number = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=None if column is None else [column]):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


def hub_rows(
    name: str, split: str, instead: str, subset: str | None = None, revision: str | None = None
) -> Iterator[PlacedRow]:
    """The rows of a data set on the hub, or of a folder. Raises UserError, with what can be done `instead`, when it
    cannot be had.
    """
    if not exists(expanded(name)):
        about_to_fetch(f"The data set {name}")
    from datasets import load_dataset  # imported here: it takes a second, and files do without it

    try:
        for number, row in enumerate(load_dataset(name, subset, split=split, revision=revision, streaming=True), 1):
            yield f"{name}, row {number}", row
    except Exception as error:  # datasets, fsspec and the hub raise errors of many kinds
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        of_it = "" if subset is None else f" ({subset})"
        raise UserError(f"Data set '{name}'{of_it} cannot be had: {problem} {instead}") from None


def parse_json(text: str) -> Any:
    """What a JSON text says. Raises ValueError for what is no JSON, NaN and infinities among it, and for text with half
    a character (a lone surrogate), which no tokenizer reads and no answer can match.
    """
    value = json.loads(text, parse_constant=_no_constant)
    said = json.dumps(value, ensure_ascii=False)
    if well_formed(said) != said:
        raise ValueError(HALF_A_CHARACTER)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")
