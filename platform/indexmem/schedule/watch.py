"""A scheduler in the foreground, for a machine that has neither systemd nor cron. It only calls the nightly command."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from indexmem.live.status import duration
from indexmem.schedule.night import Nights
from indexmem.schedule.slots import Slots

NAP_SECONDS = 30.0  # a long sleep would miss that the machine slept or its clock was set


@dataclass
class Watch:
    """Calls `run` once for each slot. Of slots that were missed, the newest alone is made up for, once.

    There is something to make up for only where nights have run before: starting a watch for the first time starts no
    night.
    """

    slots: Slots
    nights: Nights
    run: Callable[[dt.date], int]  # the night of this date; -> its exit code
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], dt.datetime] | None = None
    _called: set[dt.date] = field(default_factory=set)

    def forever(self) -> None:
        """Until interrupted."""
        if not self.nights.all():
            self._called.add(self.slots.newest(self._now()).date())
        while True:
            while self.once():
                pass  # a night that took more than a day has let slots pass
            slot = self.slots.following(self._now())
            wait = (slot - self._now()).total_seconds()
            self.say(f"next night: {slot:%Y-%m-%d %H:%M}, in {duration(wait)}")
            self._wait_for(slot)

    def once(self) -> bool:
        """Run the newest slot's night, unless it was called before or is judged already. Returns whether it was run."""
        date = self.slots.newest(self._now()).date()
        if date in self._called or self.nights.night(date).verdict() is not None:
            return False
        self._called.add(date)
        self.say(f"night of {date}")
        self.say(f"night of {date}: exit code {self.run(date)}")
        return True

    def _wait_for(self, slot: dt.datetime) -> None:
        while (left := (slot - self._now()).total_seconds()) > 0:
            self.sleep(min(left, NAP_SECONDS))

    def _now(self) -> dt.datetime:
        return (self.now or self.slots.now)()
