"""One part of the row store: what its file is called, what is written to it, and what is read from it.

The name ends in a digest of the content. Parquet's own page checksums leave the footer and the page headers uncovered,
where a flipped bit renames a column or moves a value; a name that belongs to the content covers every bit. Parts of
earlier versions have no digest, and are checked as far as parquet itself can.

Rows are checked strictly on the way in; on the way out, parts of older versions are taken as far as possible.
"""

from __future__ import annotations

import hashlib
import operator
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexmem.results.schema import FAILED, KEY, OK, upgraded

TableName = Literal["rows", "retention"]

RANKING = ("status", "score", "created_at")  # decides between rows of one key, in tables that have these columns
OLDEST = -(2**63)  # microseconds; rows without a time lose against any that has one
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


def validated(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """`rows` as a table of exactly `schema`. Raises ValueError on a missing or unknown field or a wrong type."""
    names = set(schema.names)
    for index, row in enumerate(rows):
        if row.keys() != names:
            missing, unknown = sorted(names - row.keys()), sorted(row.keys() - names)
            raise ValueError(f"row {index} does not fit the schema: missing {missing}, unknown {unknown}")
    return pa.Table.from_arrays([_column([row[field.name] for row in rows], field) for field in schema], schema=schema)


def to_parquet(rows: pa.Table) -> pa.Buffer:
    """The file of a part. Text columns are dictionary-encoded: most say the same in every row."""
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def encoded(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """Validated rows as the file of a part, ready for `RowStore.append_encoded` in another process."""
    return to_parquet(validated(rows, schema)).to_pybytes()


def conform(found: pa.Table, fields: pa.Schema) -> pa.Table:
    """`found` with exactly `fields`: cast where a type differs, derived or null where a column is missing.

    A row without a score in [0, 1] has failed, whatever its status says. Raises pyarrow.ArrowInvalid when a cast would
    change a value.
    """
    if found.schema.equals(fields):
        return _scored(found)
    found = upgraded(found)
    present = set(found.column_names)
    columns = [
        found[field.name].cast(field.type) if field.name in present else pa.nulls(found.num_rows, field.type)
        for field in fields
    ]
    return _scored(pa.Table.from_arrays(columns, schema=fields))


def _scored(rows: pa.Table) -> pa.Table:
    """`rows` with status FAILED, and the reason, where an OK row has no score in [0, 1]."""
    if not {"status", "score"} <= set(rows.column_names):
        return rows
    score = rows["score"]
    usable = pc.fill_null(pc.and_(pc.greater_equal(score, 0.0), pc.less_equal(score, 1.0)), False)
    wrong = pc.and_(pc.fill_null(pc.equal(rows["status"], OK), False), pc.invert(usable))
    if not pc.any(wrong).as_py():
        return rows
    seen = pc.coalesce(score.cast(pa.string()), pa.scalar("null"))
    reason = pc.binary_join_element_wise("the stored score is ", seen, ", no number in [0, 1]", "")
    failure = {"status": FAILED, "score": None, "error_class": "ScoreError", "error_message": reason}
    for name in [name for name in failure if name in rows.column_names]:
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(name), pc.if_else(wrong, failure[name], rows[name]))
    return rows


def deduplicate(rows: pa.Table) -> pa.Table:
    """One row per KEY, sorted by KEY. `rows` come in the order they were written, oldest first.

    An OK row beats a failed one, then the newest created_at wins, then the row written last.
    """
    if rows.num_rows == 0:
        return rows
    ranked = rows.select(KEY)
    if "status" in rows.column_names:
        ranked = ranked.append_column("ok", pc.fill_null(pc.equal(rows["status"], OK), False).cast(pa.int8()))
    if "created_at" in rows.column_names:
        ranked = ranked.append_column("created", pc.fill_null(rows["created_at"].cast(pa.int64()), OLDEST))
    order = pc.sort_indices(ranked, sort_keys=[(name, "ascending") for name in ranked.column_names])
    ordered = rows.take(order)  # the sort is stable: of equal rows the one written last comes last
    keys = [ordered[name].combine_chunks() for name in KEY]
    last_of_key = reduce(pc.or_, [pc.not_equal(key[:-1], key[1:]) for key in keys])
    return ordered.filter(pa.concat_arrays([pc.fill_null(last_of_key, True), pa.array([True])]))


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if field.name in KEY and None in values:
        raise ValueError(f"field '{field.name}' is part of the key and must not be null")
    if field.name == "status" and (wrong := set(values) - {OK, FAILED}):
        raise ValueError(f"field 'status' must be '{OK}' or '{FAILED}', got {sorted(map(str, wrong))}")
    if pa.types.is_list(field.type) and str in map(type, values):  # pyarrow would split it into letters
        raise ValueError(f"field '{field.name}' must be {field.type}, got a string")
    try:
        if pa.types.is_integer(field.type):  # pyarrow would cut the fraction off a float
            values = [None if value is None else operator.index(value) for value in values]
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(f"field '{field.name}' must be {field.type}: {error}") from None
