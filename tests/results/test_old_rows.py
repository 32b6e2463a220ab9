"""Rows of older schemas: what they lack follows from what they have, else it is null."""

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


def test_columns_that_came_later_are_null(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("new", protocol="ruler", truncated=True, decode_kept_mean=7.5)], "p")
    later = ["protocol", "labels", "other_scores", "truncated", "decode_kept_mean", "decode_kept_max"]
    old = pa.Table.from_pylist([row("old", schema_version=2)], schema=ROW_SCHEMA).drop_columns(later)
    pq.write_table(old, part_files(tmp_path)[0].parent / f"part-{1:020d}-{uuid4().hex}.parquet")
    new, before = sorted(store.read(["p"]).to_pylist(), key=lambda found: found["cell_id"])
    assert [before[name] for name in later] == [None] * len(later)
    assert (new["protocol"], new["truncated"], new["decode_kept_mean"]) == ("ruler", True, 7.5)


def test_they_count_as_done(store: RowStore) -> None:
    assert store.done(["p"], list(BUDGETS), ["s/0"]).all()
