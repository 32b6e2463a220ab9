"""The foreground scheduler on a clock that the test moves."""

import datetime as dt

import pytest
from night_rows import date, fill, judged, nightly_spec

from indexmem.schedule.night import Nights
from indexmem.schedule.slots import Slots
from indexmem.schedule.watch import Watch


class Stopped(Exception):
    pass


class Clock:
    """Time that passes by sleeping; the watch ends at `until`."""

    def __init__(self, start: dt.datetime, until: dt.datetime) -> None:
        self.time, self.until = start, until

    def now(self) -> dt.datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += dt.timedelta(seconds=seconds)
        if self.time >= self.until:
            raise Stopped


@pytest.fixture
def spec(tmp_path):
    return nightly_spec(tmp_path, timezone="Europe/Berlin")


def watched(spec, start: str, until: str, first_takes: float = 60.0) -> list[tuple[dt.date, str]]:
    """The nights that a watch calls between two times, with the time of the call."""
    slots = Slots.of(spec)
    clock = Clock(*(dt.datetime.fromisoformat(text).replace(tzinfo=slots.timezone) for text in (start, until)))
    calls = []

    def run(date: dt.date) -> int:
        calls.append((date, f"{clock.time:%d %H:%M}"))
        clock.time += dt.timedelta(seconds=first_takes if len(calls) == 1 else 60.0)
        return 3

    with pytest.raises(Stopped):
        Watch(slots, Nights.of(spec), run, lambda text: None, clock.sleep, clock.now).forever()
    return calls


def test_each_slot_is_called_once(spec):
    calls = watched(spec, "2026-11-10T12:00", "2026-11-13T12:00")
    assert calls == [(dt.date(2026, 11, day), f"{day} 02:00") for day in (11, 12, 13)]


def test_a_missed_slot_is_made_up_for_once_and_only_the_newest(spec):
    fill(Nights.of(spec).night(date(0)))
    calls = watched(spec, "2026-11-10T12:00", "2026-11-11T12:00")
    assert calls == [(dt.date(2026, 11, 10), "10 12:00"), (dt.date(2026, 11, 11), "11 02:00")]


def test_a_restart_does_not_call_a_judged_night_again(spec):
    night = Nights.of(spec).night(dt.date(2026, 11, 10))
    fill(night)
    assert watched(spec, "2026-11-10T12:00", "2026-11-10T20:00") == [(night.date, "10 12:00")]
    judged(spec, night)
    assert watched(spec, "2026-11-10T12:00", "2026-11-10T20:00") == []


def test_slots_that_pass_while_a_night_runs_are_made_up_for_once(spec):
    calls = watched(spec, "2026-11-10T12:00", "2026-11-15T12:00", first_takes=49 * 3600)
    assert [time for _, time in calls] == ["11 02:00", "13 03:00", "14 02:00", "15 02:00"]
