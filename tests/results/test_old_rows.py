"""Rows of older schemas: what they lack follows from what they have, else it is null."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_rows import done, part_files, row

from indexmem.results.samples import sample_scores
from indexmem.results.schema import FAILED, OK, ROW_SCHEMA
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
    later = ["settings", "group", "protocol", "labels", "other_scores", "truncated"]
    later += ["decode_kept_mean", "decode_kept_max"]
    old = pa.Table.from_pylist([row("old", schema_version=2)], schema=ROW_SCHEMA).drop_columns(
        [*later, "question_aware"]
    )
    pq.write_table(old, part_files(tmp_path)[0].parent / f"part-{1:020d}-{uuid4().hex}.parquet")
    new, before = sorted(store.read(["p"]).to_pylist(), key=lambda found: found["cell_id"])
    assert [before[name] for name in later] == [None] * len(later)
    assert before["question_aware"] is False, "no question was seen before there was a choice"
    assert (new["protocol"], new["truncated"], new["decode_kept_mean"]) == ("ruler", True, 7.5)


@pytest.mark.parametrize("columns", [None, ["cell_id", "status"]])
@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.1, None])
def test_a_row_without_a_usable_score_has_failed(
    tmp_path: Path, score: float | None, columns: list[str] | None
) -> None:
    """Statistics and publishing would end with an error; so the row is tried again."""
    store = RowStore(tmp_path)
    store.append([row("bad", score=score), row("good", score=0.25)], "p")
    found = {item["cell_id"]: item for item in store.read(["p"], columns=columns).to_pylist()}
    assert (found["bad"]["status"], found["good"]["status"]) == (FAILED, OK)
    assert done(store, ["p"], ["bad", "good"], ["s/0"]).tolist() == [[False], [True]]
    if columns is None:
        assert (found["bad"]["score"], found["bad"]["error_class"]) == (None, "ScoreError")
        assert "the stored score is " in found["bad"]["error_message"]
        store.append([row("bad", score=1.0)], "p")
        assert store.read(["p"], cell_ids=["bad"])["score"].to_pylist() == [1.0]


def test_samples_of_rows_without_groups_are_groups_of_their_own() -> None:
    found = [row(sample=f"s/{n}", group=None, method="m", budget="50%", benchmark="b") for n in range(3)]
    scores = sample_scores(pa.Table.from_pylist(found, schema=ROW_SCHEMA), ("method",))
    assert scores["group"].to_pylist() == ["s/0", "s/1", "s/2"]


def test_they_count_as_done(store: RowStore) -> None:
    assert done(store, ["p"], list(BUDGETS), ["s/0"]).all()
