"""Rows that were stored before there were budgets of other kinds: theirs follows from their ratio."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_rows import part_files, row

from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.store import RowStore


@pytest.fixture
def store(tmp_path: Path) -> RowStore:
    """A part of version 1 and one of today."""
    store = RowStore(tmp_path)
    store.append([row("tokens", budget="512 tokens", ratio=None), row("share", budget="25%", ratio=0.25)], "p")
    old = [row(f"old-{ratio}", ratio=ratio, schema_version=1) for ratio in (0.0, 0.5, 0.975)]
    table = pa.Table.from_pylist(old, schema=ROW_SCHEMA).drop_columns(["budget"])
    pq.write_table(table, part_files(tmp_path)[0].parent / f"part-{1:020d}-{uuid4().hex}.parquet")
    return store


BUDGETS = {"old-0.0": "0%", "old-0.5": "50%", "old-0.975": "97.5%", "share": "25%", "tokens": "512 tokens"}


@pytest.mark.parametrize("columns", [None, ["cell_id", "budget"]])
@pytest.mark.parametrize("compacted", [False, True])
def test_their_budget_is_read_from_the_ratio(
    store: RowStore, tmp_path: Path, columns: list[str] | None, compacted: bool
) -> None:
    if compacted:
        store.compact("p")
        assert len(part_files(tmp_path)) == 1
    found = store.read(["p"], columns=columns)
    assert found.column_names == (columns or ROW_SCHEMA.names)
    assert dict(zip(found["cell_id"].to_pylist(), found["budget"].to_pylist())) == BUDGETS


def test_they_count_as_done(store: RowStore) -> None:
    assert store.done(["p"], list(BUDGETS), ["s/0"]).all()
