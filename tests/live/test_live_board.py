"""Status files: whole at any time, honest about drivers that are gone, harmless when they cannot be written."""

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

import pytest

from indexmem.live import board
from indexmem.live.board import STALE_SECONDS, StatusFile, read_board, read_entry
from indexmem.live.status import Curve, Failure, MethodScores, Scores, Status

STATUS = Status(
    "grid",
    "rows",
    500,
    100,
    3,
    rate=12.5,
    failures=(Failure("knorm 75% a/1", "ValueError: x"),),
    scores=Scores(("50%", "75%"), (MethodScores("knorm", (0.5, None), (4, 0)),)),
    curves=(Curve("loss", ((0, 1.0), (5, 0.5))),),
)
DRIVER = """
import sys, time
from pathlib import Path
from indexmem.live.board import StatusFile
from indexmem.live.status import Status
StatusFile(Path(sys.argv[1]), "smoke", "grid").write(Status("grid", "rows", 9, 1))
print("written", flush=True)
time.sleep(60)
"""


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1e9

    monkeypatch.setattr(board.time, "time", lambda: Clock.now)
    monkeypatch.setattr(board.time, "monotonic", lambda: Clock.now)
    return Clock


def test_what_is_written_is_read(tmp_path, clock):
    StatusFile(tmp_path, "smoke", "grid").write(STATUS)
    (entry,) = read_board(tmp_path)
    assert (entry.file, entry.state, entry.record.name, entry.record.pid) == (
        *("smoke.grid", "running", "smoke"),
        os.getpid(),
    )
    assert entry.record.status == STATUS
    plain = json.loads((tmp_path / "live" / "smoke.grid.json").read_text())
    assert plain["status"]["scores"]["methods"][0] == {"method": "knorm", "means": [0.5, None], "rows": [4, 0]}
    assert os.listdir(tmp_path / "live") == ["smoke.grid.json"]


def test_writing_is_rare_unless_asked_for(tmp_path, clock):
    file = StatusFile(tmp_path, "smoke", "grid")
    file.write(STATUS)
    clock.now += 0.5
    file.write(replace(STATUS, done=200))
    assert read_entry(file.path).record.status.done == 100
    file.write(replace(STATUS, done=300), "done", now=True)
    assert (read_entry(file.path).record.status.done, read_entry(file.path).state) == (300, "done")
    clock.now += 10
    file.write(replace(STATUS, done=400))
    assert read_entry(file.path).record.status.done == 400
    assert read_entry(file.path).record.started == 1e9


def test_silence_is_stale_and_an_end_is_not(tmp_path, clock):
    running, ended = StatusFile(tmp_path, "a", "grid"), StatusFile(tmp_path, "b", "training")
    running.write(STATUS)
    ended.write(STATUS, "stopped")
    clock.now += STALE_SECONDS
    assert [entry.state for entry in read_board(tmp_path)] == ["running", "stopped"]
    clock.now += 1
    assert {entry.record.name: entry.state for entry in read_board(tmp_path)} == {"a": "stale", "b": "stopped"}


def test_a_killed_driver_is_stale_at_once_and_its_file_is_taken_over(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "written\n"
        assert [entry.state for entry in read_board(tmp_path)] == ["running"]
        # Another driver of the same spec shows beside it.
        second = StatusFile(tmp_path, "smoke", "grid")
        assert second.path.name == "smoke.grid-2.json"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert [entry.state for entry in read_board(tmp_path)] == ["stale"]
    assert StatusFile(tmp_path, "smoke", "grid").path.name == "smoke.grid.json"


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "WRITE_SECONDS", 0.0)
    file = StatusFile(tmp_path, "smoke", "grid")
    file.write(STATUS)
    big = replace(STATUS, curves=(Curve("loss", tuple((n, 0.5) for n in range(20_000))),))
    writer = threading.Thread(target=lambda: [file.write(status) for status in (big, STATUS) * 20])
    writer.start()
    reads = 0
    while writer.is_alive():
        assert read_entry(file.path) is not None
        reads += 1
    writer.join()
    assert reads > 5


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 1}', b"\xff\xfe", b'{"schema": 2, "name": "x"}'])
def test_foreign_files_are_left_out(tmp_path, content):
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "other.json").write_bytes(content)
    assert read_board(tmp_path) == []
    assert read_board(tmp_path / "nowhere") == []


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path):
    (tmp_path / "live").write_text("in the way")
    file = StatusFile(tmp_path, "smoke", "grid")
    with pytest.warns(RuntimeWarning, match="live view is not written"):
        file.write(STATUS, now=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file.write(STATUS, now=True)
