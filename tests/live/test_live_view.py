"""What a person sees while a run goes on: lines in a log, a picture on a terminal, and how it ended."""

import io
import os
from dataclasses import replace

import pytest
from rich.console import Console

from indexmem.live import lines
from indexmem.live.board import StatusFile, read_entry
from indexmem.live.lines import Meter
from indexmem.live.screen import Screen
from indexmem.live.status import Curve, Failure, MethodScores, Scores, Status
from indexmem.live.view import LiveView, make_display

STATUS = Status("grid", "rows", 1000)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(lines.time, "monotonic", lambda: Clock.now)
    return Clock


def test_the_meter_speaks_now_and_then_at_the_end_and_when_there_is_something_to_wait_for(clock):
    said = []
    meter, status = Meter(said.append, 10.0), STATUS
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


def drawn(*statuses: Status, width: int = 100) -> str:
    out = io.StringIO()
    screen = Screen("smoke grid", Console(file=out, force_terminal=True, width=width, height=40, color_system=None))
    for status in statuses:
        screen(status)
    screen.close()
    return out.getvalue()


def test_the_screen_shows_progress_scores_and_the_last_failure():
    scores = Scores(("50%", "75%"), (MethodScores("knorm", (0.95, None), (4, 0)),), omitted=2)
    full = replace(STATUS, done=250, failed=2, rate=12.5, eta_seconds=60.0, actors=4, scores=scores, note="waiting")
    full = replace(full, failures=(Failure("knorm 75% a/1", "ValueError: [bold]no[/bold]"),), batch_rows=8)
    text = drawn(full)
    for part in ("smoke grid", "250/1,000 rows", "12.5 rows/s", "about 60 s left", "4 actors", "batches of 8 rows"):
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
    text = drawn(STATUS, replace(STATUS, done=500, failures=(Failure("a", "x" * 400),), failed=1), width=60)
    assert "\x1b[1A" in text or "\x1b[2K" in text, "the first picture is overwritten"
    pictures = text.split("\x1b[2K")
    assert max(len(line) for line in pictures[-2].replace("\r", "\n").split("\n")) <= 60


def test_losses_are_on_the_screen_of_a_training():
    status = Status("training", "steps", 80, 10, curves=(Curve("loss indexer", ((0, 1.0), (9, 0.25))),))
    assert "loss indexer 0.2500" in drawn(status)


def test_a_terminal_gets_the_picture_and_a_pipe_the_lines(monkeypatch):
    leader, follower = os.openpty()
    with os.fdopen(leader), os.fdopen(follower, "w") as terminal:
        monkeypatch.setenv("TERM", "xterm")
        screen = make_display("smoke grid", print, 1.0, terminal)
        screen.close()
        assert isinstance(screen, Screen)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_display("smoke grid", print, 1.0, terminal), Meter)
    assert isinstance(make_display("smoke grid", print, 1.0, io.StringIO()), Meter)


ENDS = {
    "done": (None, 1000, "done", ""),
    "early": (None, 999, "stopped", ""),
    "Ctrl-C": (KeyboardInterrupt(), 10, "stopped", ""),
    "error": (ValueError("no\nroom"), 10, "failed", "ValueError: no room"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_file_says_how_a_run_ended(tmp_path, name):
    error, done, state, note = ENDS[name]
    file = StatusFile(tmp_path, "smoke", "grid")
    said = []
    view = LiveView(file, Meter(said.append, 10.0))

    def run():
        with view:
            view(replace(STATUS, done=done, actors=2))
            assert read_entry(file.path).state == "running"
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            run()
    else:
        run()
    entry = read_entry(file.path)
    assert (entry.state, entry.record.status.note, entry.record.status.actors) == (state, note, 0)
    assert said == [f"  {done}/1000 rows  2 actors"]


def test_a_run_with_much_news_is_looked_at_now_and_then_and_at_its_end(tmp_path, monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr("time.monotonic", lambda: Clock.now)
    looks, shown = [], []
    display = Meter(lambda line: None, 1.0)
    monkeypatch.setattr(Meter, "__call__", lambda self, status: shown.append(status.done))
    with LiveView(StatusFile(tmp_path, "smoke", "grid"), display) as view:
        for done in range(1001):  # 10 s

            def look(done: int = done) -> Status:
                looks.append(done)
                return replace(STATUS, done=done)

            view.watch(look)
            Clock.now += 0.01
    assert len(looks) <= 22
    assert shown[-1] == 1000
    assert read_entry(tmp_path / "live" / "smoke.grid.json").state == "done"


def test_a_run_that_never_began_leaves_no_file(tmp_path):
    with LiveView(StatusFile(tmp_path, "smoke", "grid"), Meter(print, 1.0)):
        pass
    assert not (tmp_path / "live").exists()
