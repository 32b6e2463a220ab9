"""Rows as Arrow tables: strict on the way in, tolerant of older parts on the way out, one row per key."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexmem.results.schema import FAILED, KEY, OK, upgraded

RANKING = ("status", "score", "created_at")  # decides between rows of one key, in tables that have these columns
OLDEST = -(2**63)  # microseconds; rows without a time lose against any that has one


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
    """The same with status FAILED, and the reason, where an OK row has no score that statistics could use."""
    if not {"status", "score"} <= set(rows.column_names):
        return rows
    score = rows["score"]
    usable = pc.fill_null(pc.and_(pc.greater_equal(score, 0.0), pc.less_equal(score, 1.0)), False)
    wrong = pc.and_(pc.fill_null(pc.equal(rows["status"], OK), False), pc.invert(usable))
    if not pc.any(wrong).as_py():
        return rows
    seen = pc.coalesce(score.cast(pa.string()), pa.scalar("null"))
    reason = pc.binary_join_element_wise("the stored score is ", seen, ", no number in [0, 1]", "")
    told = {"status": FAILED, "score": None, "error_class": "ScoreError", "error_message": reason}
    for name in [name for name in told if name in rows.column_names]:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pc.if_else(wrong, told[name], rows[name]))
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
