"""Rows that benchmarks are made of, each with the fields that it needs.

Complaints name the place and what was expected there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from indexmem.errors import UserError
from indexmem.files import expanded
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


@dataclass(frozen=True)
class PublishedRows:
    """Rows of published data, read when they are first needed: of a file, of a folder with the published files, or of
    the hub."""

    path: str  # one of these three
    types: FieldTypes
    file: str = ""  # its name in a folder, without the extension; with a wildcard: the parts of it
    origin: str = ""  # who published the files
    split: str = "test"
    subset: str | None = None
    check: CheckRow = no_check
    on_hub: bool = True  # as a data set that can be read row by row

    @cached_property
    def rows(self) -> list[BenchmarkRow]:
        """All rows in order. Raises UserError when there are none to be had, or one does not fit."""
        local = expanded(self.path)
        if self.file and local.is_dir():
            return rows_of_folder(local, self.file, self.origin, self.types, self.check)
        if local.is_file():
            return rows_of_file(local, self.types, self.check)
        instead = (
            f"Give path=FOLDER with the files of {self.origin}." if self.file else "Give path=FILE of a local copy."
        )
        if not self.on_hub:
            raise UserError(f"There is no folder {local}. {instead}")
        return rows_of_hub(self.path, self.split, self.types, instead, self.subset, self.check)


def rows_of_folder(
    folder: Path, name: str, origin: str, types: FieldTypes, check: CheckRow = no_check
) -> list[BenchmarkRow]:
    """The rows of the files `name` (a pattern), of any extension that can be read, in a folder or in `data` in it.
    Raises UserError when there are none, or as `rows_of_file` does."""
    for parent, kind in product((folder, folder / "data"), (".jsonl", ".parquet", ".json")):
        if found := sorted(parent.glob(name + kind)):
            return [row for file in found for row in rows_of_file(file, types, check)]
    raise UserError(f"{folder} has no {name}.jsonl. Expected the files of {origin}.")


def rows_of_file(path: Path, types: FieldTypes, check: CheckRow = no_check) -> list[BenchmarkRow]:
    """The rows of a .jsonl, .json (a list) or .parquet file, each with the fields of `types`.

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
        elif file_kind(path) == ".json":
            with open_text(path) as text:
                yield from json_list(text.read(), str(path))
        else:
            with open_text(path) as lines:
                yield from jsonl_rows(lines, str(path), parse_json)


def json_list(text: str, source: str) -> Iterator[PlacedRow]:
    """The items of a JSON list. Raises UserError for anything else."""
    try:
        items = parse_json(text)
    except ValueError as error:
        raise UserError(f"{source}: not valid JSON ({error}).") from None
    if not isinstance(items, list):
        raise UserError(f"{source} must hold a list of rows, got {text:.80}.")
    return ((f"{source}, row {number}", item) for number, item in enumerate(items, start=1))


def _listed(types: FieldTypes) -> str:
    return ", ".join(
        f"{field} ({_either(kind if isinstance(kind, tuple) else (kind,))})" for field, kind in types.items()
    )


def _either(types: Sequence[type]) -> str:
    return " or ".join(TYPE_NAMES[kind] for kind in types)
