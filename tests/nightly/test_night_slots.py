"""Slots of the cron expression: which night is due, across clock changes."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from indexmem.config.nightly import NightlySpec, SuiteConfig
from indexmem.errors import UserError
from indexmem.nightly.slots import Slots

BERLIN = ZoneInfo("Europe/Berlin")


def slots(cron: str = "0 2 * * *", timezone: str | None = "Europe/Berlin") -> Slots:
    return Slots.of(NightlySpec(cron=cron, timezone=timezone, suites=(SuiteConfig(name="a", spec="a.yaml"),)))


def at(*time: int) -> dt.datetime:
    return dt.datetime(*time, tzinfo=BERLIN)


def test_a_slot_counts_from_its_first_second():
    assert slots().newest(at(2026, 5, 4, 2, 0)) == at(2026, 5, 4, 2, 0)
    assert slots().newest(at(2026, 5, 4, 1, 59, 59)) == at(2026, 5, 3, 2, 0)


def test_every_night_has_one_slot_when_clocks_change():
    for first in (dt.datetime(2026, 3, 27, 12, tzinfo=dt.UTC), dt.datetime(2026, 10, 23, 12, tzinfo=dt.UTC)):
        seen = []
        for minutes in range(0, 4 * 24 * 60, 10):
            slot = slots().newest((first + dt.timedelta(minutes=minutes)).astimezone(BERLIN))
            seen += [slot] if slot not in seen else []
        assert [slot.date() for slot in seen] == sorted({slot.date() for slot in seen})
        assert len(seen) == 5


def test_a_night_without_a_time_zone_uses_the_machine_s():
    assert slots(timezone=None).now().tzinfo is not None
    assert slots(timezone=None).newest(slots(timezone=None).now()) <= slots(timezone=None).now()


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("0 2,14 * * *", "due twice on a day"),
        ("0 25 * * *", "Bad hour"),
        ("0 2 31 2 *", "never due"),
        ("@daily", "five"),
    ],
)
def test_mistakes_name_the_expression(cron, message):
    with pytest.raises(UserError, match=message):
        slots(cron)
