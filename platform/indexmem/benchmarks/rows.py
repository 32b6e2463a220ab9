"""Rows that benchmarks are made of: JSON lines or parquet on disk, or a split of a data set on the hub.

Only data is read: no code of a data set is ever run. Complaints name the file, the line and what was expected there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from indexmem.errors import UserError
from indexmem.unicode import HALF_A_CHARACTER, well_formed

Row = dict[str, Any]
Kinds = Mapping[str, type | tuple[type, ...]]  # field -> what its value must be
Check = Callable[[Row, str], None]  # (row, "FILE, line 3"): raises UserError for what kinds do not say

NAMES: Mapping[type, str] = MappingProxyType(
    {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping", bool: "true or false"}
)


def no_check(row: Row, where: str) -> None:
    """Kinds say it all."""


def read_rows(path: Path, kinds: Kinds, check: Check = no_check) -> list[Row]:
    """The rows of a .jsonl or .parquet file, each with the fields of `kinds`.

    Raises UserError when the file cannot be read as what its extension says, holds no row, or a row does not fit.
    """
    if path.suffix == ".parquet":
        try:
            numbered: Iterable[tuple[int, Any]] = enumerate(pq.read_table(path).to_pylist(), start=1)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as parquet: {error}") from None
        return checked_rows(numbered, kinds, f"{path}, row", check)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as JSON lines in UTF-8: {error}") from None
    return parse_lines(text, kinds, str(path), check)


def parse_lines(text: str, kinds: Kinds, source: str, check: Check = no_check) -> list[Row]:
    """The rows of JSON lines; blank lines are skipped. Raises UserError as `read_rows` does."""
    return checked_rows(_parsed(text, source), kinds, f"{source}, line", check)


def parse_json(text: str) -> Any:
    """What a JSON text says. Raises ValueError for what is no JSON, NaN and infinities among it, and for text with half
    a character (a lone surrogate), which no tokenizer reads and no answer can match.
    """
    value = json.loads(text, parse_constant=_no_constant)
    said = json.dumps(value, ensure_ascii=False)
    if well_formed(said) != said:
        raise ValueError(HALF_A_CHARACTER)
    return value


def checked_rows(numbered: Iterable[tuple[int, Any]], kinds: Kinds, where: str, check: Check) -> list[Row]:
    """`numbered` rows without their numbers. Raises UserError for the first that lacks a field or fails the check."""
    rows = []
    for number, row in numbered:
        if not isinstance(row, dict):
            raise UserError(f"{where} {number}: expected an object with the fields {_listed(kinds)}; got {row!r:.80}.")
        for field, kind in kinds.items():
            if field not in row:
                raise UserError(f"{where} {number}: the field '{field}' is missing. Expected: {_listed(kinds)}.")
            check_kind(row[field], kind, f"{where} {number}: '{field}'")
        check(row, f"{where} {number}")
        rows.append(row)
    if not rows:
        raise UserError(f"{where.rsplit(', ', 1)[0]} holds no rows. Expected fields: {_listed(kinds)}.")
    return rows


def check_kind(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """Raises UserError unless `value` is of the kind; true and false are no numbers."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UserError(f"{what} must be {_either(kinds)}, got {value!r:.80}.")


def read_hub(name: str, split: str, kinds: Kinds, check: Check = no_check) -> list[Row]:
    """A split of a hub data set. Raises UserError when it cannot be had or its rows do not fit."""
    from datasets import load_dataset  # slow to import, and of no use for local files

    try:
        rows = load_dataset(name, split=split).to_list()
    except Exception as error:  # datasets, fsspec and the hub raise errors of many kinds
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"Data set '{name}' cannot be had: {problem} Give path=FILE of a local copy.") from None
    return checked_rows(enumerate(rows, start=1), kinds, f"{name}, row", check)


def _parsed(text: str, source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                problem = error.msg if isinstance(error, json.JSONDecodeError) else error
                raise UserError(f"{source}, line {number}: not valid JSON ({problem}): {line:.80}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _listed(kinds: Kinds) -> str:
    fields = ((field, kind if isinstance(kind, tuple) else (kind,)) for field, kind in kinds.items())
    return ", ".join(f"{field} ({_either(kind)})" for field, kind in fields)


def _either(kinds: Sequence[type]) -> str:
    return " or ".join(NAMES[kind] for kind in kinds)
