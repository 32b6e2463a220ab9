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
from store_rows import done_keys, part_files, row

from indexmem.results.store import STALE_SECONDS, RowStore


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
    os.utime(stale, (0, time.time() - STALE_SECONDS - 60))
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
