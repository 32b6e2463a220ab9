"""RowStore under kills, full disks, and other processes in the same folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from store_rows import done, done_keys, part_files, retention, row

from indexmem.results.store import ABANDONED_SECONDS, RowStore


def test_a_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore(tmp_path)

    def full_disk(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="disk full"):
        store.append([row()], "p")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_only_stale_temporary_files_are_cleaned(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row()], "p")
    folder = part_files(tmp_path)[0].parent
    stale, fresh = folder / ".tmp-stale", folder / ".tmp-fresh"
    for path in (stale, fresh):
        path.write_bytes(b"half a part")
    os.utime(stale, (0, time.time() - ABANDONED_SECONDS - 60))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.read(["p"]).num_rows == 1
    assert not stale.exists()
    assert fresh.exists()


def test_a_crash_during_compaction_only_leaves_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore(tmp_path)
    for index in range(4):
        store.append([row(sample=f"s/{index}", score=index / 4)], "p")
    before = store.read(["p"])
    removed = []

    class DyingFileSystem:
        def __getattr__(self, name: str) -> Any:
            return getattr(alive, name)

        def delete_file(self, path: str) -> None:
            if removed:
                raise KeyboardInterrupt
            removed.append(path)
            alive.delete_file(path)

    alive = store._filesystem
    with monkeypatch.context() as patch:
        patch.setattr("indexmem.results.store.LocalFileSystem", DyingFileSystem)
        patch.setattr(store, "_filesystem", DyingFileSystem())
        with pytest.raises(KeyboardInterrupt):
            store.compact("p")
    assert len(part_files(tmp_path)) == 4  # one of four deleted, one merged part added
    assert store.read(["p"]).equals(before)
    store.compact("p")
    assert len(part_files(tmp_path)) == 1
    assert store.read(["p"]).equals(before)


def test_reading_survives_a_compaction_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = RowStore(tmp_path), RowStore(tmp_path)
    for index in range(3):
        store.append([row(sample=f"s/{index}")], "p")
    real, calls = store._list, []

    def list_then_compact(partition: str, table: str) -> list[str]:
        paths = real(partition, table)
        if not calls:
            other.compact("p")
        calls.append(paths)
        return paths

    monkeypatch.setattr(store, "_list", list_then_compact)
    assert store.read(["p"]).num_rows == 3
    assert len(calls) == 2


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from store_rows import row
from indexmem.results.store import RowStore
store = RowStore(sys.argv[2])
for index in range(int(sys.argv[4])):
    rows = [row(sys.argv[3], f"s/{index}", repeat) for repeat in range(5)]
    store.append(rows, "p")
    print(index, flush=True)
"""


def start_writer(root: Path, cell: str, parts: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(root), cell, str(parts)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def test_no_flipped_bit_changes_a_value_or_blocks_the_other_parts(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a", score=0.5, prediction="left", references=["one"])], "p")
    store.append([row("b", score=0.25)], "p")
    whole = store.read(["p"])
    part = part_files(tmp_path)[0]
    content = part.read_bytes()
    for at in range(0, len(content), 151):  # data, page headers and footer
        part.write_bytes(flipped(content, at))
        with pytest.warns(RuntimeWarning, match=f"Left out .*{part.name}: damaged"):
            assert store.read(["p"]).equals(whole.slice(1)), at
    part.write_bytes(content)
    assert store.read(["p"]).equals(whole)


def test_a_damaged_part_of_an_earlier_version_is_named_whatever_it_raises(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a", score=0.5, prediction="left", references=["one"])], "p")
    store.append([row("b", score=0.25)], "p")
    part, other = part_files(tmp_path)
    old = part.rename(part.with_name(f"{part.stem.rpartition('-')[0]}.parquet"))
    assert store.read(["p"])["cell_id"].to_pylist() == ["a", "b"]
    content = old.read_bytes()
    for at in range(0, len(content), 151):
        old.write_bytes(flipped(content, at))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert "b" in store.read(["p"])["cell_id"].to_pylist(), at
            store.compact("p")
            assert (old.exists(), other.exists()) in ((True, True), (False, False))
        for path in part_files(tmp_path):
            path.unlink()
        store.append([row("b", score=0.25)], "p")
        (other,) = part_files(tmp_path)


def test_damaged_parts_are_moved_aside_and_their_rows_are_missing(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append([row("a")], "p")
    store.append([row("b")], "p")
    store.append([retention("s/0", [0.0])], "p", "retention")
    part, _ = sorted((tmp_path / "rows").rglob("*.parquet"))
    (picture,) = (tmp_path / "retention").rglob("*.parquet")
    for path in (part, picture):
        path.write_bytes(flipped(path.read_bytes(), 100))
    with pytest.warns(RuntimeWarning, match=f"Moved .*{part.name} to "):
        moved = store.set_aside(["p"])
    aside = [tmp_path / "damaged" / path.relative_to(tmp_path) for path in (part, picture)]
    assert [Path(path) for path in moved] == aside
    assert all(path.is_file() for path in aside) and not part.exists() and not picture.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert done(store, ["p"], ["a", "b"], ["s/0"]).tolist() == [[False], [True]]
        assert store.set_aside(["p"]) == []
        store.append([row("a")], "p")
        assert done(store, ["p"], ["a", "b"], ["s/0"]).all()


def test_a_merged_part_equal_to_an_input_does_not_go_with_it(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    for _ in range(2):
        store.append([row("a")], "p")
    store.compact("p")
    assert store.read(["p"])["cell_id"].to_pylist() == ["a"]


def test_two_processes_append_at_once(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, cell, 20) for cell in "ab"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert len(done_keys(RowStore(tmp_path), "ab", [f"s/{index}" for index in range(20)], 5)) == 2 * 20 * 5


def test_a_killed_writer_loses_nothing_that_it_confirmed(tmp_path: Path) -> None:
    for kill in range(3):
        writer = start_writer(tmp_path, f"c{kill}", 100_000)
        assert writer.stdout is not None
        for _ in range(3 + 4 * kill):
            confirmed = int(writer.stdout.readline())
        time.sleep(0.001 * kill)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no half-written part may be visible
            samples = [f"s/{index}" for index in range(confirmed + 50)]
            done = done_keys(RowStore(tmp_path), [f"c{kill}"], samples, 5)
        for index in range(confirmed + 1):
            assert {(f"c{kill}", f"s/{index}", repeat) for repeat in range(5)} <= done
        assert len(done) % 5 == 0  # parts are whole
