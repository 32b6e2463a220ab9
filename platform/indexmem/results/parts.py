"""One part of the row store: how its file is called, and what is read from it.

The name ends in a digest of the content. Parquet's own page checksums leave the footer and the page headers uncovered,
where a flipped bit renames a column or moves a value; a name that belongs to the content covers every bit. Parts of
earlier versions have no digest, and are checked as far as parquet itself can.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from indexmem.results.schema import KEY
from indexmem.results.table import conform

TableName = Literal["rows", "retention"]

_NAME = re.compile(r"part-(\d{20})-[0-9a-f]{32}(?:-([0-9a-f]{16}))?\.parquet")


class Part(NamedTuple):
    """One parsed file: its rows, or what is wrong with it."""

    path: str
    rows: pa.Table | None = None
    complaint: str = ""
    damaged: bool = False  # written by a store, and changed since
    columns: frozenset[str] = frozenset()  # all that the file has


def part_name(content: pa.Buffer, stamp: int) -> str:
    """Name of a new part, in the order of `stamp` (ns). Random, too: a merged part must not replace an equal input."""
    return f"part-{stamp:020d}-{uuid.uuid4().hex}-{_digest(content)}.parquet"


def is_part(path: str) -> bool:
    """Whether a store gave this name."""
    return _NAME.fullmatch(basename(path)) is not None


def stamp_of(path: str) -> int:
    """The `stamp` of a part's name."""
    return int(basename(path).split("-")[1])


def basename(path: str) -> str:
    return PurePosixPath(path).name


def read_part(path: str, content: pa.Buffer, table: TableName, fields: pa.Schema) -> Part:
    """The columns `fields` of a file, as far as it has or can derive them."""
    if not path.endswith(".parquet"):
        return Part(path, complaint="not a parquet file, so not written by this store")
    named = _NAME.fullmatch(basename(path))
    digest = named[2] if named else None
    if digest and digest != _digest(content):
        return Part(path, complaint="damaged: it does not hold what was written", damaged=True)
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        present = frozenset(file.schema_arrow.names)
        if missing := _required(table) - present:
            return Part(path, complaint=f"it has no column {', '.join(sorted(missing))}", damaged=named is not None)
        found = file.read(columns=[name for name in fields.names if name in present], use_threads=False)
        if not digest:
            found.validate(full=True)
        return Part(path, conform(found, fields), columns=present)
    except (pa.ArrowException, OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        return Part(path, complaint=f"unreadable or damaged ({error})", damaged=named is not None)


def _required(table: TableName) -> frozenset[str]:
    return frozenset([*KEY, "status"] if table == "rows" else KEY)


def _digest(content: pa.Buffer) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
