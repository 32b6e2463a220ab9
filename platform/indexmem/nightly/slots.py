"""When nights begin: the slots of a cron expression, in local time. A night is named by the date of its slot."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from indexmem.config.nightly import NightlySpec
from indexmem.errors import UserError

EXAMPLE = "Example: cron='0 2 * * *'"
LOOK_AHEAD = 8  # slots that are looked at: more than a week of any weekly pattern


@dataclass(frozen=True)
class Slots:
    """The times at which a nightly spec is due. Where clocks jump over a slot, it is due when they have jumped."""

    cron: str
    timezone: ZoneInfo | None  # None: that of the machine

    @classmethod
    def of(cls, spec: NightlySpec) -> Slots:
        """Raises UserError for an expression that is not valid, never due, or due twice on a day."""
        slots = cls(spec.cron, ZoneInfo(spec.timezone) if spec.timezone else None)
        start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        try:
            if len(spec.cron.split()) != 5:
                raise CronSimError("not five fields")
            upcoming = CronSim(spec.cron, start)
            dates = [next(upcoming).date() for _ in range(LOOK_AHEAD)]
        except (CronSimError, StopIteration) as error:
            raise UserError(f"cron='{spec.cron}' is never due ({error}). {EXAMPLE}") from None
        if len(set(dates)) != len(dates):
            raise UserError(f"cron='{spec.cron}' is due twice on a day, but a night is named by its date. {EXAMPLE}")
        return slots

    def now(self) -> dt.datetime:
        """The time, in the spec's time zone."""
        return dt.datetime.now(self.timezone).astimezone(self.timezone)

    def newest(self, now: dt.datetime) -> dt.datetime:
        """The last slot at or before `now`."""
        # A slot at this very second counts: schedulers are punctual.
        return next(CronSim(self.cron, now + dt.timedelta(seconds=1), reverse=True))
