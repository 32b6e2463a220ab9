"""Rows that benchmarks are made of, each with the fields that it needs.

Complaints name the place and what was expected there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from indexmem.errors import UserError
from indexmem.texts.rows import (
    PlacedRow,
    file_kind,
    hub_rows,
    jsonl_rows,
    open_text,
    parquet_rows,
    parse_json,
    readable,
)

BenchmarkRow = dict[str, Any]
FieldTypes = Mapping[str, type | tuple[type, ...]]  # field -> what its value must be
CheckRow = Callable[[BenchmarkRow, str], None]  # (row, "FILE, line 3"): raises UserError for what types do not say

TYPE_NAMES: Mapping[type, str] = MappingProxyType(
    {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping", bool: "true or false"}
)


def no_check(row: BenchmarkRow, where: str) -> None:
    """For rows of which the types say all."""


def rows_of_file(path: Path, types: FieldTypes, check: CheckRow = no_check) -> list[BenchmarkRow]:
    """The rows of a .jsonl or .parquet file, each with the fields of `types`.

    Raises UserError when the file cannot be read as what its extension says, holds no row, or a row does not fit.
    """
    return checked_rows(_file_rows(path), types, str(path), check)


def rows_of_lines(text: str, types: FieldTypes, source: str) -> list[BenchmarkRow]:
    """The rows of JSON lines. Raises UserError as `rows_of_file` does."""
    return checked_rows(jsonl_rows(text.split("\n"), source, parse_json), types, source)


def rows_of_hub(
    name: str, split: str, types: FieldTypes, instead: str, subset: str | None = None, check: CheckRow = no_check
) -> list[BenchmarkRow]:
    """A split of a hub data set. Raises UserError when it cannot be had or its rows do not fit."""
    return checked_rows(hub_rows(name, split, instead, subset), types, name, check)


def checked_rows(
    rows: Iterable[PlacedRow], types: FieldTypes, source: str, check: CheckRow = no_check
) -> list[BenchmarkRow]:
    """The rows without their places. Raises UserError for the first that lacks a field or fails the check."""
    checked = []
    for where, row in rows:
        if not isinstance(row, dict):
            raise UserError(f"{where}: expected an object with the fields {_listed(types)}; got {row!r:.80}.")
        check_fields(row, types, where)
        check(row, where)
        checked.append(row)
    if not checked:
        raise UserError(f"{source} holds no rows. Expected fields: {_listed(types)}.")
    return checked


def check_fields(row: BenchmarkRow, types: FieldTypes, where: str) -> None:
    """Raises UserError unless the row has every field, of its type."""
    for field, kind in types.items():
        if field not in row:
            raise UserError(f"{where}: the field '{field}' is missing. Expected: {_listed(types)}.")
        check_type(row[field], kind, f"{where}: '{field}'")


def check_type(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """Raises UserError unless `value` is of the type; true and false are no numbers."""
    types = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UserError(f"{what} must be {_either(types)}, got {value!r:.80}.")


def _file_rows(path: Path) -> Iterator[PlacedRow]:
    with readable(path):
        if file_kind(path) == ".parquet":
            yield from parquet_rows(path)
        else:
            with open_text(path) as lines:
                yield from jsonl_rows(lines, str(path), parse_json)


def _listed(types: FieldTypes) -> str:
    return ", ".join(
        f"{field} ({_either(kind if isinstance(kind, tuple) else (kind,))})" for field, kind in types.items()
    )


def _either(types: Sequence[type]) -> str:
    return " or ".join(TYPE_NAMES[kind] for kind in types)
