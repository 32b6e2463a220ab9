"""What a person reads while a grid runs."""

import pytest

from indexmem.evaluate import progress as module
from indexmem.evaluate.progress import Meter, Progress, duration


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


def test_the_rate_is_that_of_the_last_minutes(clock):
    progress = Progress(10_000, done=1000)
    progress.start()
    assert (progress.rate, progress.eta_seconds) == (None, None)
    for _ in range(100):  # slow at first
        clock.now += 10
        progress.add(10, 1)
    assert progress.rate == pytest.approx(1)
    for _ in range(20):
        clock.now += 10
        progress.add(50, 0)
    assert progress.rate == pytest.approx(5)
    assert progress.eta_seconds == pytest.approx(7000 / 5)
    assert (progress.done, progress.failed) == (3000, 100)
    clock.now += 880  # a stall shows
    assert progress.rate == pytest.approx(0.6, rel=0.1)


def test_long_units_have_a_rate_too(clock):
    progress = Progress(100)
    progress.start()
    for _ in range(20):
        clock.now += 600
        progress.add(1, 0)
    assert progress.rate == pytest.approx(1 / 600)


def test_the_line(clock):
    progress = Progress(500)
    assert progress.line() == "0/500 rows"
    progress.start()
    clock.now += 10
    progress.add(100, 3)
    progress.actors, progress.note = 4, "waiting"
    assert progress.line() == "100/500 rows  3 failed  10 rows/s  about 40 s left  4 actors  waiting"
    progress.add(400, 0)
    progress.actors, progress.note = 1, ""
    assert progress.line() == "500/500 rows  3 failed  50 rows/s  1 actor"
    assert [duration(s) for s in (1.4, 119, 120, 3600, 9000)] == ["1 s", "119 s", "2 min", "60 min", "2.5 h"]


def test_the_meter_speaks_now_and_then_at_the_end_and_when_there_is_something_to_wait_for(clock):
    lines = []
    meter, progress = Meter(lines.append, 10.0), Progress(1000)
    progress.start()
    for _ in range(400):  # 100 s
        clock.now += 0.25
        progress.add(1, 0)
        meter(progress)
    assert len(lines) == 10
    progress.note = "no actor has a place"
    meter(progress)
    assert lines[-1].endswith("no actor has a place")
    for number in range(40):  # 10 s of changing news
        clock.now += 0.25
        progress.note = f"{number} free"
        meter(progress)
    assert 4 <= len(lines) - 11 <= 6
    progress.note = ""
    progress.add(600, 0)
    before = len(lines)
    for _ in range(5):
        clock.now += 0.25
        meter(progress)
    assert len(lines) == before + 1
    assert "1000/1000" in lines[-1]
