"""Append-only rows on disk: many small parquet parts in a folder, written whole or not at all.

Layout: <root>/<table>/<partition>/part-<nanoseconds>-<random>-<digest>.parquet. A part is never changed once written,
so any number of writers and readers share a folder without locks. The same sample may be written twice (a retry, a
resumed run, an interrupted compaction); reading keeps one row per key. A damaged part is left out, with a warning, and
moved to <root>/damaged/ by `set_aside`; nothing is deleted.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from indexmem.errors import UserError
from indexmem.files import TEMPORARY, expanded, write_whole
from indexmem.results.parts import (
    RANKING,
    Part,
    TableName,
    basename,
    deduplicate,
    is_part,
    part_name,
    read_part,
    stamp_of,
    to_parquet,
    validated,
)
from indexmem.results.schema import DERIVED, KEY, OK, RETENTION_SCHEMA, ROW_SCHEMA

SCHEMAS: Mapping[TableName, pa.Schema] = {"rows": ROW_SCHEMA, "retention": RETENTION_SCHEMA}

ABANDONED_SECONDS = 3600.0  # writing a part takes milliseconds; an older temporary file belongs to a killed writer
READERS = 8  # parts fetched at once: on an object store latency dominates
RELISTS = 5  # tries when parts vanish between listing and reading, because another process compacts
AGAIN: Mapping[TableName, str] = {
    "rows": " Its rows count as missing: `indexmem eval` of their specs moves the file aside and computes them again.",
    "retention": " Which tokens those rows kept is recorded again only with the rows.",
}
MERGED_ROWS = 200_000  # a merge of small parts holds no more in memory at a time

_PARTITION = re.compile(r"[A-Za-z0-9][\w.=-]*(/[A-Za-z0-9][\w.=-]*)*", re.ASCII)


class RowStore:
    """Parquet rows under `root`: a local folder or a pyarrow filesystem URI (s3://, gs://, abfs://, file://).

    Raises UserError when the URI names an unknown filesystem. Nothing is created before the first append.
    """

    def __init__(self, root: str | Path) -> None:
        try:
            located = FileSystem.from_uri(str(root)) if "://" in str(root) else None
        except (pa.ArrowException, ValueError) as error:
            raise UserError(f"Cannot store results at '{root}': {error}. Example: s3://bucket/folder") from None
        self._filesystem, base = located or (LocalFileSystem(), str(expanded(root).absolute()))
        self._root = base.rstrip("/")

    def append(self, rows: Sequence[Mapping[str, Any]], partition: str, table: TableName = "rows") -> str | None:
        """Write `rows` as one part and return its path (None for no rows).

        Raises ValueError, before anything is written, when a row has missing or unknown fields or a wrong type.
        """
        if not rows:
            return None
        return self.append_encoded(to_parquet(validated(rows, SCHEMAS[table])), partition, table)

    def append_encoded(self, content: bytes | pa.Buffer, partition: str, table: TableName = "rows") -> str:
        """Write what `results.parts.encoded` made as one part and return its path. Costs one write, no parsing."""
        return self._write(pa.py_buffer(content), self._folder(partition, table), time.time_ns())

    def read(
        self,
        partitions: Sequence[str],
        table: TableName = "rows",
        cell_ids: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """One row per (cell_id, sample_id, repeat), sorted by that key.

        Among rows of one key an OK row beats a failed one, then the newest created_at wins, then the newest part.
        Damaged or foreign files are named in a warning and left alone; columns that a part lacks are
        derived from others where possible, else null.
        """
        schema = SCHEMAS[table]
        wanted = list(columns) if columns is not None else schema.names
        needed = {*wanted, *KEY, *RANKING, *(DERIVED[name] for name in wanted if name in DERIVED)}
        fields = pa.schema([field for field in schema if field.name in needed])
        return deduplicate(self._load(partitions, table, fields, cell_ids)).select(wanted)

    def partitions(self, prefix: str, table: TableName = "rows") -> list[str]:
        """The partitions whose names begin so."""
        found = self._filesystem.get_file_info(FileSelector(f"{self._root}/{table}", allow_not_found=True))
        names = (info.base_name for info in found if info.type == FileType.Directory)
        return sorted(name for name in names if name.startswith(prefix))

    def scores(
        self,
        partitions: Sequence[str],
        cell_ids: Sequence[str],
        sample_ids: Sequence[str],
        repeat: int | Sequence[int] = 0,
    ) -> NDArray[np.float32]:
        """score_CS of the (cell, sample) pairs that have an OK row; NaN for the others. `repeat`: of all samples, or of
        each one.

        Four bytes a pair and one part at a time, since grids have millions of rows.
        """
        score_CS = np.full((len(cell_ids), len(sample_ids)), np.nan, np.float32)
        cells = pa.array(cell_ids, pa.string())
        repeats = np.broadcast_to(np.asarray(repeat, np.int32), len(sample_ids))
        samples = _with_repeat(pa.array(sample_ids, pa.string()), pa.array(repeats))

        def mark(part: Part) -> Part:
            if part.rows is not None:
                rows = part.rows.filter(pc.field("status") == OK)
                at_C = pc.fill_null(pc.index_in(rows["cell_id"], cells), -1).to_numpy()
                asked = _with_repeat(rows["sample_id"], rows["repeat"])
                at_S = pc.fill_null(pc.index_in(asked, samples), -1).to_numpy()
                known = (at_C >= 0) & (at_S >= 0)
                score_CS[at_C[known], at_S[known]] = pc.fill_null(rows["score"], 0.0).to_numpy()[known]
            return part._replace(rows=None)

        columns = pa.schema([ROW_SCHEMA.field(name) for name in (*KEY, "status", "score")])
        self._read_parts(partitions, "rows", columns, mark)
        return score_CS

    def compact(self, partition: str, table: TableName = "rows", below: int | None = None, parts: int = 2) -> None:
        """Merge neighbouring parts, at least `parts` at a time: all of them, or those with fewer than `below` rows.

        The merged part is complete before the old ones go, so a crash leaves duplicates at worst. Files that this
        version cannot rewrite without loss (foreign, corrupt, or of a newer schema) stay as they are.
        """
        paths = sorted(filter(is_part, self._list(partition, table)), key=basename)
        with contextlib.suppress(FileNotFoundError):  # another process compacts the same partition
            for run in [paths] if below is None else self._small_runs(paths, below):
                if len(run) >= parts:
                    self._merge(run, partition, table)

    def set_aside(self, partitions: Sequence[str]) -> list[str]:
        """Move damaged parts to <root>/damaged/, where nobody reads them; says so, and returns their new paths."""
        moved = []
        for table, schema in SCHEMAS.items():
            for part in self._read_parts(partitions, table, schema, lambda part: part._replace(rows=None)):
                if not part.damaged:
                    continue
                target = f"{self._root}/damaged/{part.path.removeprefix(f'{self._root}/')}"
                self._filesystem.create_dir(target.rpartition("/")[0])
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    self._filesystem.move(part.path, target)
                    moved.append(target)
                    warnings.warn(f"Moved {part.path} to {target}.", RuntimeWarning, stacklevel=2)
        return moved

    def _small_runs(self, paths: Sequence[str], below: int) -> list[list[str]]:
        """Neighbours with fewer than `below` rows. A large part ends a run: merging past it would change the order."""
        runs: list[list[str]] = [[]]
        total = 0
        for path in paths:
            rows = self._row_count(path)
            if rows is None or rows >= below or total + rows > MERGED_ROWS:
                runs.append([])
                total = 0
            if rows is not None and rows < below:
                runs[-1].append(path)
                total += rows
        return runs

    def _row_count(self, path: str) -> int | None:
        """Rows of a part, from its footer; None when unreadable."""
        with self._filesystem.open_input_file(path) as stream:
            try:
                return int(pq.ParquetFile(stream).metadata.num_rows)
            except (pa.ArrowException, OSError):
                return None

    def _merge(self, paths: Sequence[str], partition: str, table: TableName) -> None:
        known = set(SCHEMAS[table].names)
        found = self._parse(paths, table, SCHEMAS[table])
        parts = [part for part in found if part.rows is not None and part.columns <= known]
        if len(parts) < 2:
            return
        merged = deduplicate(pa.concat_tables([part.rows for part in parts]))
        # Dated like its newest input: a part written meanwhile must still count as newer.
        newest = max(stamp_of(part.path) for part in parts)
        self._write(to_parquet(merged), self._folder(partition, table), newest)
        for part in parts:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(part.path)

    def _folder(self, partition: str, table: TableName) -> str:
        assert _PARTITION.fullmatch(partition), f"not a partition name: {partition!r}"
        return f"{self._root}/{table}/{partition}"

    def _write(self, content: pa.Buffer, folder: str, stamp: int) -> str:
        path = f"{folder}/{part_name(content, stamp)}"
        if isinstance(self._filesystem, LocalFileSystem):
            write_whole(Path(path), content, durable=True)
        else:
            with self._filesystem.open_output_stream(path) as stream:  # the object appears at close
                stream.write(content)
        return path

    def _load(
        self, partitions: Sequence[str], table: TableName, fields: pa.Schema, cell_ids: Collection[str] | None
    ) -> pa.Table:
        parts = self._read_parts(partitions, table, fields)
        rows = pa.concat_tables([fields.empty_table(), *(part.rows for part in parts if part.rows is not None)])
        if cell_ids is None:
            return rows
        return rows.filter(pc.is_in(rows["cell_id"], pa.array(sorted(cell_ids), pa.string())))

    def _read_parts(
        self,
        partitions: Sequence[str],
        table: TableName,
        fields: pa.Schema,
        use: Callable[[Part], Part] = lambda part: part,
    ) -> list[Part]:
        """All parts, oldest first. `use` sees each as it arrives, perhaps twice, and may drop its rows."""
        for remaining in reversed(range(RELISTS)):
            paths = [path for partition in dict.fromkeys(partitions) for path in self._list(partition, table)]
            paths.sort(key=basename)
            try:
                return self._parse(paths, table, fields, use)
            except FileNotFoundError:
                if not remaining:
                    raise
        raise AssertionError("the last round returns or raises")

    def _parse(
        self, paths: Sequence[str], table: TableName, fields: pa.Schema, use: Callable[[Part], Part] = lambda part: part
    ) -> list[Part]:
        with ThreadPoolExecutor(READERS) as pool:
            parts = list(pool.map(lambda path: use(read_part(path, self._content(path), table, fields)), paths))
        for part in parts:
            if part.complaint:
                message = f"Left out {part.path}: {part.complaint}.{AGAIN[table] if part.damaged else ''}"
                warnings.warn(message, RuntimeWarning, stacklevel=5)
        return parts

    def _list(self, partition: str, table: TableName) -> list[str]:
        infos = self._filesystem.get_file_info(FileSelector(self._folder(partition, table), allow_not_found=True))
        files = [info for info in infos if info.type == FileType.File]
        for info in files:
            if info.base_name.startswith(TEMPORARY) and _age_seconds(info) > ABANDONED_SECONDS:
                with contextlib.suppress(OSError):  # a reader may lack the right to delete
                    self._filesystem.delete_file(info.path)
        return [info.path for info in files if not info.base_name.startswith(".")]

    def _content(self, path: str) -> pa.Buffer:
        """I/O errors (no permission, no network) propagate: such a file is not damaged."""
        with self._filesystem.open_input_file(path) as stream:
            return stream.read_buffer()


def _with_repeat(sample_ids: pa.Array, repeats: pa.Array) -> pa.Array:
    """What tells one row of a cell from another, as one text."""
    return pc.binary_join_element_wise(sample_ids, repeats.cast(pa.string()), "\n")


def _age_seconds(info: FileInfo) -> float:
    return time.time() - info.mtime_ns / 1e9 if info.mtime_ns is not None else 0.0
