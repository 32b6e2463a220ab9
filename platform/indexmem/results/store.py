"""Append-only rows on disk: many small parquet parts in a folder, written whole or not at all.

Layout: <root>/<table>/<partition>/part-<nanoseconds>-<random>.parquet. A part is never changed once written, so any
number of writers and readers share a folder without locks. The same sample may be written twice (a retry, a resumed
run, an interrupted compaction); reading keeps one row per key.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from indexmem.errors import UserError
from indexmem.results.schema import KEY, OK, RETENTION_SCHEMA, ROW_SCHEMA
from indexmem.results.table import RANKING, conform, deduplicate, validated

TableName = Literal["rows", "retention"]
SCHEMAS: Mapping[str, pa.Schema] = {"rows": ROW_SCHEMA, "retention": RETENTION_SCHEMA}

TEMPORARY = ".tmp-"
STALE_SECONDS = 3600.0  # writing a part takes milliseconds; an older temporary file belongs to a killed writer
READERS = 8  # parts fetched at once: on an object store latency dominates
RELISTS = 5  # tries when parts vanish between listing and reading, because another process compacts

_PARTITION = re.compile(r"[A-Za-z0-9][\w.=-]*(/[A-Za-z0-9][\w.=-]*)*", re.ASCII)
_PART_NAME = re.compile(r"part-(\d{20})-[0-9a-f]+\.parquet")


class _Part(NamedTuple):
    """One parsed file: its rows, or what is wrong with it."""

    path: str
    rows: pa.Table | None = None
    complaint: str = ""
    newer: bool = False  # has columns that this version does not know


class RowStore:
    """Parquet rows under `root`: a local folder or a pyarrow filesystem URI (s3://, gs://, abfs://, file://).

    Raises UserError when the URI names an unknown filesystem. Nothing is created before the first append.
    """

    def __init__(self, root: str | Path) -> None:
        try:
            located = FileSystem.from_uri(str(root)) if "://" in str(root) else None
        except (pa.ArrowException, ValueError) as error:
            raise UserError(f"Cannot store results at '{root}': {error}. Example: s3://bucket/folder") from None
        self._filesystem, base = located or (LocalFileSystem(), str(Path(root).expanduser().absolute()))
        self._root = base.rstrip("/")

    def append(self, rows: Sequence[Mapping[str, Any]], partition: str, table: TableName = "rows") -> str | None:
        """Write `rows` as one part and return its path (None for no rows).

        Raises ValueError, before anything is written, when a row has missing or unknown fields or a wrong type.
        """
        if not rows:
            return None
        return self._write(validated(rows, SCHEMAS[table]), self._folder(partition, table), time.time_ns())

    def read(
        self,
        partitions: Sequence[str],
        table: TableName = "rows",
        cell_ids: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """One row per (cell_id, sample_id, repeat), sorted by that key.

        Among rows of one key an OK row beats a failed one, then the newest created_at wins, then the newest part.
        Unreadable or foreign files are named in a warning and left alone; columns that a part lacks are null.
        """
        schema = SCHEMAS[table]
        wanted = list(columns) if columns is not None else schema.names
        needed = {*wanted, *KEY, *RANKING}
        fields = pa.schema([field for field in schema if field.name in needed])
        return deduplicate(self._load(partitions, table, fields, cell_ids)).select(wanted)

    def done(self, partitions: Sequence[str]) -> set[tuple[str, str, int]]:
        """Keys (cell_id, sample_id, repeat) that have an OK row: what a restarted run need not redo."""
        fields = pa.schema([ROW_SCHEMA.field(name) for name in (*KEY, "status")])
        rows = self._load(partitions, "rows", fields, None)
        finished = rows.filter(pc.equal(rows["status"], OK))
        return set(zip(*(finished[name].to_pylist() for name in KEY)))

    def compact(self, partition: str, table: TableName = "rows") -> None:
        """Merge a partition's parts into one.

        The merged part is complete before the old ones go, so a crash leaves duplicates at worst. Files that this
        version cannot rewrite without loss (foreign, corrupt, or of a newer schema) stay as they are.
        """
        parts = [
            part
            for part in self._read_parts([partition], table, SCHEMAS[table])
            if part.rows is not None and not part.newer and _PART_NAME.fullmatch(_basename(part.path))
        ]
        if len(parts) < 2:
            return
        merged = deduplicate(pa.concat_tables([part.rows for part in parts]))
        # Dated like its newest input: a part written meanwhile must still count as newer.
        newest = max(int(_basename(part.path).split("-")[1]) for part in parts)
        self._write(merged, self._folder(partition, table), newest)
        for part in parts:
            with contextlib.suppress(FileNotFoundError):  # another process compacts the same partition
                self._filesystem.delete_file(part.path)

    def _folder(self, partition: str, table: str) -> str:
        assert _PARTITION.fullmatch(partition), f"not a partition name: {partition!r}"
        return f"{self._root}/{table}/{partition}"

    def _write(self, table: pa.Table, folder: str, stamp: int) -> str:
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd")
        path = f"{folder}/part-{stamp:020d}-{uuid.uuid4().hex}.parquet"
        if isinstance(self._filesystem, LocalFileSystem):
            _write_whole(Path(path), buffer.getvalue())
        else:
            with self._filesystem.open_output_stream(path) as stream:  # the object appears at close
                stream.write(buffer.getvalue())
        return path

    def _load(
        self, partitions: Sequence[str], table: str, fields: pa.Schema, cell_ids: Collection[str] | None
    ) -> pa.Table:
        parts = self._read_parts(partitions, table, fields)
        rows = pa.concat_tables([fields.empty_table(), *(part.rows for part in parts if part.rows is not None)])
        if cell_ids is None:
            return rows
        return rows.filter(pc.is_in(rows["cell_id"], pa.array(sorted(cell_ids), pa.string())))

    def _read_parts(self, partitions: Sequence[str], table: str, fields: pa.Schema) -> list[_Part]:
        for remaining in reversed(range(RELISTS)):
            paths = [path for partition in dict.fromkeys(partitions) for path in self._list(partition, table)]
            paths.sort(key=_basename)
            try:
                with ThreadPoolExecutor(READERS) as pool:
                    parts = list(pool.map(lambda path: self._read_part(path, table, fields), paths))
                break
            except FileNotFoundError:
                if not remaining:
                    raise
        for part in parts:
            if part.complaint:
                warnings.warn(f"Left out {part.path}: {part.complaint}", RuntimeWarning, stacklevel=4)
        return parts

    def _list(self, partition: str, table: str) -> list[str]:
        infos = self._filesystem.get_file_info(FileSelector(self._folder(partition, table), allow_not_found=True))
        files = [info for info in infos if info.type == FileType.File]
        for info in files:
            if info.base_name.startswith(TEMPORARY) and _age_seconds(info) > STALE_SECONDS:
                with contextlib.suppress(OSError):  # a reader may lack the right to delete
                    self._filesystem.delete_file(info.path)
        return [info.path for info in files if not info.base_name.startswith(".")]

    def _read_part(self, path: str, table: str, fields: pa.Schema) -> _Part:
        """Parse one file. I/O errors (no permission, no network) propagate: such a file is not corrupt."""
        if not path.endswith(".parquet"):
            return _Part(path, complaint="not a parquet file, so not written by this store")
        with self._filesystem.open_input_file(path) as stream:
            content = stream.read_buffer()
        try:
            file = pq.ParquetFile(pa.BufferReader(content))
            present = set(file.schema_arrow.names)
            required = [*KEY, "status"] if table == "rows" else [*KEY]
            if missing := [name for name in required if name not in present]:
                return _Part(path, complaint=f"it has no column {', '.join(missing)}")
            found = file.read(columns=[name for name in fields.names if name in present], use_threads=False)
            return _Part(path, conform(found, fields), newer=not present <= set(SCHEMAS[table].names))
        except (pa.ArrowException, OSError) as error:
            return _Part(path, complaint=f"unreadable or damaged ({error})")


def _write_whole(path: Path, content: pa.Buffer) -> None:
    """Create `path` with all of `content` or not at all, even when the process or the machine dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _age_seconds(info: FileInfo) -> float:
    return time.time() - info.mtime_ns / 1e9 if info.mtime_ns is not None else 0.0


def _basename(path: str) -> str:
    return PurePosixPath(path).name
