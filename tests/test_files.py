"""Files appear whole or not at all."""

import subprocess
import sys
import time

import pytest

from indexmem.files import TEMPORARY, check_writable, draft_of, write_whole


def test_replaces_text_and_bytes_and_makes_the_folder(tmp_path):
    path = tmp_path / "new" / "a.json"
    write_whole(path, "é")
    assert path.read_bytes() == "é".encode()
    write_whole(path, memoryview(b"bytes"), durable=True)
    assert path.read_bytes() == b"bytes"
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def half_written(path):
    with draft_of(path) as draft:
        draft.write_text("half")
        raise RuntimeError


def test_a_block_that_raises_changes_nothing(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        half_written(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_killed_writers_leave_the_old_or_the_new_and_drafts_that_no_reader_takes_for_files(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, "x" * 50_000)
    endless = (
        "import itertools; from pathlib import Path; from indexmem.files import write_whole\n"
        f"for n in itertools.count(): write_whole(Path({str(path)!r}), 'xy'[n % 2] * 50_000)"
    )
    for wait in (0.01, 0.02, 0.05):
        writer = subprocess.Popen([sys.executable, "-c", endless])
        seen = path.stat().st_ino
        while path.stat().st_ino == seen:
            time.sleep(0.001)
        time.sleep(wait)
        writer.kill()
        writer.wait()
        assert path.read_text() in ("x" * 50_000, "y" * 50_000)
    assert list(tmp_path.glob("*.json")) == [path]
    assert all(file.name.startswith(TEMPORARY) for file in tmp_path.iterdir() if file != path)


def test_looking_whether_a_folder_can_be_written_leaves_nothing_in_it(tmp_path):
    check_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
