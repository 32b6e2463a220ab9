"""`indexmem board`: one page out of many stores, or a check of rows that others wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.board.page import write_board
from indexmem.board.sections import sections
from indexmem.board.sources import Source, check_names, read_source
from indexmem.errors import UserError
from indexmem.files import folder_at


def board(stores: Sequence[str], out: Path) -> int:
    """Write the page of all stores and say where it is. Raises UserError as `read_source` does."""
    folder_at(out)
    check_names(stores)
    sources = [read_source(store) for store in stores]
    found = sections(pa.concat_tables([source.rows for source in sources]))
    for source in sources:
        print(_said(source))
    unranked = sum(bool(section.unknown) for section in found)
    print(f"Protocols: {len(found)}; not ranked, because something of them is not recorded: {unranked}")
    print(f"Board: {write_board(found, sources, out)}")
    return 0


def check_stores(stores: Sequence[str]) -> int:
    """Say of each store what its rows are, or what is wrong with them; 2 if anything is."""
    wrong = []
    for store in stores:
        try:
            print(_said(read_source(store)))
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    return 0


def _said(source: Source) -> str:
    rows, kinds = source.rows, ", ".join(sorted({*source.kinds}))
    counts = ", ".join(f"{name}s: {pc.count_distinct(rows[name]).as_py()}" for name in ("model", "method", "benchmark"))
    return f"{source.place}, called {source.who}, read as {kinds}; rows: {rows.num_rows:,}, {counts}"
