"""RowStore: one row per key, strict writing, tolerant reading, nothing lost silently."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_rows import NOON, done, done_keys, part_files, retention, row

from indexmem.errors import UserError
from indexmem.results.parts import encoded
from indexmem.results.schema import FAILED, KEY, OK, RETENTION_SCHEMA, ROW_SCHEMA
from indexmem.results.store import RowStore


def of_type(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_string(kind):
        return st.text(max_size=20)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_list(kind):
        return st.lists(of_type(kind.value_type), max_size=3)
    if pa.types.is_timestamp(kind):
        return st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
    if pa.types.is_floating(kind):
        return st.floats(allow_nan=False, width=32)
    return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)


@st.composite
def any_row(draw: st.DrawFn) -> dict[str, Any]:
    filled = {field.name: draw(st.none() | of_type(field.type)) for field in ROW_SCHEMA}
    key = {"cell_id": draw(st.sampled_from("ab")), "sample_id": draw(st.sampled_from("xyz")), "repeat": 0}
    status = draw(st.sampled_from([OK, FAILED]))
    return filled | key | {"status": status} | ({"score": draw(st.floats(0, 1, width=32))} if status == OK else {})


@given(parts=st.lists(st.lists(any_row(), min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_read_returns_the_winner_of_each_key_and_compaction_changes_nothing(
    parts: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = RowStore(tmp_path_factory.mktemp("store"))
    expected: dict[tuple[Any, ...], dict[str, Any]] = {}
    for part in parts:
        store.append(part, "p")
        for new in part:
            key = tuple(new[name] for name in KEY)
            rank = [
                (r["status"] == OK, r["created_at"] or datetime.min.replace(tzinfo=UTC))
                for r in (new, expected.get(key, new))
            ]
            if rank[0] >= rank[1]:
                expected[key] = new
    before = store.read(["p"])
    assert before.schema == ROW_SCHEMA
    assert before.to_pylist() == [expected[key] for key in sorted(expected)]
    store.compact("p")
    assert store.read(["p"]).equals(before)
    assert done_keys(store, "ab", "xyz") == {key for key, r in expected.items() if r["status"] == OK}


def test_an_ok_row_is_never_displaced_by_a_later_failure(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row(score=0.5)], "p")
    store.append([row(status=FAILED, score=None, created_at=NOON + timedelta(hours=1))], "p")
    assert store.read(["p"])["score"].to_pylist() == [0.5]
    assert done_keys(store, "c", ["s/0"]) == {("c", "s/0", 0)}


def test_filters_partitions_cells_and_columns(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a", score=0.1), row("b", score=0.2)], "one")
    store.append([row("c", score=0.3)], "two/nested")
    assert store.read(["two/nested", "missing", "one"], columns=["score"]).to_pydict() == {"score": [0.1, 0.2, 0.3]}
    assert store.read(["one", "two/nested"], cell_ids={"c", "a"})["cell_id"].to_pylist() == ["a", "c"]
    assert store.read(["missing"]).schema == ROW_SCHEMA
    assert store.append([], "one") is None


def test_done_sees_the_asked_pairs_only_and_only_finished_ones(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a", "s/0"), row("a", "s/1", status=FAILED), row("other", "s/0")], "p")
    store.append([row("b", "s/2"), row("b", "elsewhere"), row("b", "s/1", repeat=1)], "q")
    assert done(store, ["p", "q"], ["b", "a"], ["s/0", "s/1", "s/2"]).tolist() == [
        [False, False, True],
        [True, False, False],
    ]
    assert done(store, ["p", "q"], ["b"], ["s/0", "s/1"], repeat=1).tolist() == [[False, True]]
    assert done(store, ["missing"], ["a"], []).shape == (1, 0)


def test_compaction_of_small_parts_leaves_large_ones_and_the_order_alone(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([retention("s/0", [0.0])], "p", "retention")
    store.append([retention("s/1", [0.0])], "p", "retention")
    store.append([retention(f"s/{index}", [0.5]) for index in range(5)], "p", "retention")  # large, and newer
    store.append([retention("s/7", [1.0])], "p", "retention")
    store.append([retention("s/8", [1.0])], "p", "retention")
    before, large = store.read(["p"], "retention"), part_files(tmp_path)[2]
    store.compact("p", "retention", below=5, parts=3)
    assert len(part_files(tmp_path)) == 5, "too few of them to be worth it"
    store.compact("p", "retention", below=5)
    assert len(part_files(tmp_path)) == 3
    assert large.exists()
    assert store.read(["p"], "retention").equals(before)


def test_rows_encoded_elsewhere_are_appended_as_they_are(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append_encoded(encoded([row("a"), row("b", score=0.5)], ROW_SCHEMA), "p")
    assert store.read(["p"], columns=["cell_id", "score"]).to_pydict() == {"cell_id": ["a", "b"], "score": [0, 0.5]}


def test_retention_keeps_the_row_written_last_even_through_compaction(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([retention("s/0", [0.0])], "p", "retention")
    store.append([retention("s/0", [1.0]), retention("s/1", [0.5])], "p", "retention")
    store.compact("p", "retention")
    found = store.read(["p"], "retention")
    assert found.schema == RETENTION_SCHEMA
    assert found["retention"].to_pylist() == [[1.0], [0.5]]
    assert len(part_files(tmp_path)) == 1


def test_a_part_written_during_a_compaction_still_counts_as_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    for value in (0.0, 0.25):
        store.append([retention("s/0", [value])], "p", "retention")
    parse = store._parse

    def read_then_append(*args: Any) -> Any:
        parts = parse(*args)
        RowStore(tmp_path).append([retention("s/0", [1.0])], "p", "retention")
        return parts

    with monkeypatch.context() as patch:
        patch.setattr(store, "_parse", read_then_append)
        store.compact("p", "retention")
    assert len(part_files(tmp_path)) == 2
    assert store.read(["p"], "retention")["retention"].to_pylist() == [[1.0]]


def test_rows_of_a_part_without_a_complete_key_are_all_kept(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a")], "p")
    keyless = pa.Table.from_pylist([row("a", repeat=None), row("a", repeat=None)], schema=ROW_SCHEMA)
    pq.write_table(keyless, part_files(tmp_path)[0].parent / f"part-{1:020d}-{uuid4().hex}.parquet")
    assert store.read(["p"])["repeat"].to_pylist() == [0, None, None]


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"scroe": 1.0}, "unknown \\['scroe'\\]"),
        ({"score": "high"}, "'score' must be double"),
        ({"kept_min": 1.5}, "'kept_min' must be int32"),
        ({"references": "Paris"}, "'references' must be list"),
        ({"prediction": 5}, "'prediction' must be string"),
        ({"cell_id": None}, "'cell_id' is part of the key"),
        ({"status": "fine"}, "'status' must be 'ok' or 'failed', got \\['fine'\\]"),
    ],
)
def test_a_wrong_row_is_refused_before_anything_is_written(
    tmp_path: Path, broken: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        RowStore(tmp_path).append([row(), row() | broken], "p")
    with pytest.raises(ValueError, match="missing \\['score'\\]"):
        RowStore(tmp_path).append([{k: v for k, v in row().items() if k != "score"}], "p")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_filesystem_is_a_user_error() -> None:
    with pytest.raises(UserError, match="s3://bucket/folder"):
        RowStore("nosuch://bucket/folder")


def test_corrupt_and_foreign_files_are_named_and_left_alone(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a"), row("b")], "p")
    store.append([row("c")], "p")
    first, second = part_files(tmp_path)
    second.write_bytes(second.read_bytes()[:-100])
    (first.parent / "notes.txt").write_text("hello")
    pq.write_table(pa.table({"x": [1]}), first.parent / "other.parquet")
    with pytest.warns(RuntimeWarning) as caught:
        assert store.read(["p"])["cell_id"].to_pylist() == ["a", "b"]
    complaints = [str(warning.message) for warning in caught]
    for name in (second.name, "notes.txt", "other.parquet"):
        assert sum(name in complaint for complaint in complaints) == 1
    with pytest.warns(RuntimeWarning, match="damaged"):
        store.compact("p")
    assert second.exists()


def test_parts_of_other_schema_versions_read_and_survive_compaction(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    for cell in "ab":
        store.append([row(cell, host="h", device="d")], "p")
    folder = part_files(tmp_path)[0].parent
    older = pa.Table.from_pylist([row("old")], schema=ROW_SCHEMA).drop_columns(["host", "measured_ratio"])
    older = older.set_column(older.schema.get_field_index("repeat"), "repeat", pa.array([0], pa.int16()))
    pq.write_table(older, folder / f"part-{1:020d}-{uuid4().hex}.parquet")
    newer = pa.Table.from_pylist([row("new")], schema=ROW_SCHEMA).append_column("energy_joules", pa.array([1.0]))
    newer_path = folder / f"part-{2:020d}-{uuid4().hex}.parquet"
    pq.write_table(newer, newer_path)
    found = store.read(["p"], columns=["cell_id", "host"])
    assert found.to_pydict() == {"cell_id": ["a", "b", "new", "old"], "host": ["h", "h", "", None]}
    store.compact("p")
    assert "energy_joules" in pq.read_schema(newer_path).names
    assert len(part_files(tmp_path)) == 2
    assert store.read(["p"], columns=["cell_id", "host"]).equals(found)


def test_an_object_store_gets_the_same_rows() -> None:
    pytest.importorskip("fsspec")
    store = RowStore(f"fsspec+memory://bucket-{uuid4().hex}/results")
    store.append([row("a"), row("b", status=FAILED)], "p")
    store.append([row("b")], "p")
    store.compact("p")
    assert store.read(["p"])["cell_id"].to_pylist() == ["a", "b"]
    assert done_keys(store, "ab", ["s/0"]) == {("a", "s/0", 0), ("b", "s/0", 0)}
