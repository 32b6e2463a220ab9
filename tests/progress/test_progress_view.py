"""What a person sees while a run goes on: lines in a log, a picture on a terminal, and how it ended."""

import io
import os
from dataclasses import replace

import pytest
from rich.console import Console

from indexmem.progress import view
from indexmem.progress.screen import Screen
from indexmem.progress.status import FailureNote, MethodScores, RunStatus, ScoresSoFar
from indexmem.progress.view import LogLines, ProgressView, make_display

STATUS = RunStatus("rows", 1000)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(view.time, "monotonic", lambda: Clock.now)
    return Clock


def test_the_meter_speaks_now_and_then_at_the_end_and_when_there_is_something_to_wait_for(clock):
    said = []
    meter, status = LogLines(said.append, 10.0), STATUS
    for done in range(400):  # 100 s
        clock.now += 0.25
        status = replace(status, done=done)
        meter(status)
    assert len(said) == 10
    meter(replace(status, note="no actor has a place"))
    assert said[-1].endswith("no actor has a place")
    for number in range(40):  # 10 s of changing news
        clock.now += 0.25
        meter(replace(status, note=f"{number} free"))
    assert 4 <= len(said) - 11 <= 6
    before = len(said)
    for _ in range(5):
        clock.now += 0.25
        meter(replace(status, done=1000))
    assert len(said) == before + 1
    assert "1000/1000" in said[-1]


def test_a_log_has_the_first_failure_of_each_kind_and_each_once(clock):
    said = []
    meter = LogLines(said.append, 10.0)
    one, other = (
        FailureNote("knorm 75% a/1", "ValueError: no (mine/file.py:3)"),
        FailureNote("snapkv 75% a/1", "OSError: b"),
    )
    for kinds in ((), (one,), (one,), (one, other)):
        clock.now += 0.25
        meter(replace(STATUS, done=5, failed=len(kinds), kinds=kinds))
    assert [line for line in said if "failed:" in line] == [
        "  failed: knorm 75% a/1: ValueError: no (mine/file.py:3)",
        "  failed: snapkv 75% a/1: OSError: b",
    ]


def drawn(*statuses: RunStatus, width: int = 100) -> str:
    out = io.StringIO()
    screen = Screen("smoke grid", Console(file=out, force_terminal=True, width=width, height=40, color_system=None))
    for status in statuses:
        screen(status)
    screen.close()
    return out.getvalue()


def test_the_screen_shows_progress_scores_and_the_last_failure():
    scores = ScoresSoFar(("50%", "75%"), (MethodScores("knorm", (0.95, None)),), omitted=2)
    full = replace(
        STATUS, done=250, failed=2, rate=12.5, left_seconds=(50.0, 70.0), actors=4, scores=scores, note="waiting"
    )
    full = replace(full, failures=(FailureNote("knorm 75% a/1", "ValueError: [bold]no[/bold]"),), batch_rows=8)
    text = drawn(full)
    for part in ("smoke grid", "250/1,000 rows", "12.5 rows/s", "50 to 70 s left", "4 actors", "batches of 8 rows"):
        assert part in text
    for part in (
        "knorm",
        "95.0",
        "·",
        "and 2 more",
        "2 failed",
        "knorm 75% a/1: ValueError: [bold]no[/bold]",
        "waiting",
    ):
        assert part in text
    assert "━" in text
    assert text.rstrip().endswith("waiting"), "the last line stays"


def test_the_screen_draws_in_place_and_keeps_to_the_terminals_width():
    text = drawn(STATUS, replace(STATUS, done=500, failures=(FailureNote("a", "x" * 400),), failed=1), width=60)
    assert "\x1b[1A" in text or "\x1b[2K" in text, "the first picture is overwritten"
    pictures = text.split("\x1b[2K")
    assert max(len(line) for line in pictures[-2].replace("\r", "\n").split("\n")) <= 60


def test_losses_are_on_the_screen_of_a_training():
    status = RunStatus("steps", 80, 10, measured={"loss indexer": 0.25})
    assert "loss indexer 0.2500" in drawn(status)


def test_a_terminal_gets_the_picture_and_a_pipe_the_lines(monkeypatch):
    leader, follower = os.openpty()
    with os.fdopen(leader), os.fdopen(follower, "w") as terminal:
        monkeypatch.setenv("TERM", "xterm")
        screen = make_display("smoke grid", print, 1.0, terminal)
        screen.close()
        assert isinstance(screen, Screen)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_display("smoke grid", print, 1.0, terminal), LogLines)
    assert isinstance(make_display("smoke grid", print, 1.0, io.StringIO()), LogLines)


def test_a_run_with_much_news_is_looked_at_now_and_then_and_at_its_end(tmp_path, monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr("time.monotonic", lambda: Clock.now)
    looks, shown = [], []
    display = LogLines(lambda line: None, 1.0)
    monkeypatch.setattr(LogLines, "__call__", lambda self, status: shown.append(status.done))
    with ProgressView(display) as shown_view:
        for done in range(1001):  # 10 s

            def look(done: int = done) -> RunStatus:
                looks.append(done)
                return replace(STATUS, done=done)

            shown_view.watch(look)
            Clock.now += 0.01
    assert len(looks) <= 22
    assert shown[-1] == 1000
