"""Files of board rows: JSON lines or parquet, checked row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from indexmem.board.format import BOARD_SCHEMA, as_board_row, problems
from indexmem.config.budget import Budget
from indexmem.errors import UserError
from indexmem.texts.rows import PlacedRow, file_kind, jsonl_rows, open_text, parquet_rows, parse_json, readable

KINDS_OF_FILES = (".jsonl", ".parquet")
MOST_TOLD = 10  # problems of one file


def read_board_file(path: Path) -> pa.Table:
    """The rows of a file. Raises UserError with the first problems, each with its line, unless all rows are good."""
    with readable(path):
        good, wrong = [], []
        for where, row in _rows(path):
            if found := list(problems(row)):
                wrong += [f"{where}: {problem}." for problem in found]
                if len(wrong) >= MOST_TOLD:
                    break
            else:
                good.append(as_board_row(row))
    if wrong:
        raise UserError("\n".join(islice(wrong, MOST_TOLD)))
    if not good:
        raise UserError(f"{path} holds no rows. docs/board.md says what a row is.")
    return as_table(good)


def as_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Good rows as a table; equal budgets are written alike in it."""
    told = [row | {"budget": str(Budget.parse(row["budget"]))} for row in rows]
    return pa.Table.from_pylist(told, schema=BOARD_SCHEMA)


def _rows(path: Path) -> Iterator[PlacedRow]:
    if file_kind(path) == ".parquet":
        for where, row in parquet_rows(path):
            yield where, {name: value for name, value in row.items() if value is not None}
        return
    with open_text(path) as lines:
        yield from jsonl_rows(lines, str(path), parse_json)
