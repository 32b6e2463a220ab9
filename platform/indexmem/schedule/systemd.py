"""A systemd user service and the timer that starts it."""

from __future__ import annotations

import re
from pathlib import Path

from indexmem.config.nightly import NightlySpec
from indexmem.errors import UserError
from indexmem.files import write_whole
from indexmem.schedule.call import SECRETS, STOP_SECONDS, Call

DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def systemd_units(call: Call) -> dict[str, str]:
    """File name -> content of a user service and its timer. Raises UserError for a cron that systemd cannot express."""
    variables = "".join(f'Environment="{name}={_escaped(value)}"\n' for name, value in call.environment.items())
    service = f"""[Unit]
Description=indexmem nightly run: {call.spec.name}

[Service]
Type=oneshot
ExecStart={" ".join(f'"{_escaped(word).replace("$", "$$")}"' for word in call.command)}
WorkingDirectory={_escaped(str(Path.cwd()))}
{variables}EnvironmentFile=-%h/{SECRETS}
# One signal to the night, which passes it on and lets its step store what it is working on.
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}
# Killed for memory, for example: go on. A verdict is no reason to start again.
Restart=on-abnormal
RestartSec=60
"""
    timer = f"""[Unit]
Description=When to start {call.name}

[Timer]
OnCalendar={on_calendar(call.spec)}
Persistent=true
# A night that a reboot cut off goes on; one that is done does nothing.
OnStartupSec=5min

[Install]
WantedBy=timers.target
"""
    return {f"{call.name}.service": service, f"{call.name}.timer": timer}


def on_calendar(spec: NightlySpec) -> str:
    """The cron expression as a systemd calendar event: '0 2 * * 1-5' -> 'Mon,Tue,Wed,Thu,Fri *-*-* 02:00:00'."""
    minute, hour, day, month, weekday = spec.cron.split()
    daily = minute.isdigit() and hour.isdigit() and day == month == "*"
    if not daily or not re.fullmatch(r"\*|[0-7](-[0-7])?", weekday):
        raise UserError(
            f"cron='{spec.cron}' is more than the systemd timer here can say: a time, and a weekday or a range of "
            "them. Use --kind cron, or write the timer by hand."
        )
    first, _, last = weekday.partition("-")
    days = "" if weekday == "*" else ",".join(DAYS[int(first) : int(last or first) + 1]) + " "
    zone = f" {spec.timezone}" if spec.timezone else ""
    return f"{days}*-*-* {int(hour):02d}:{int(minute):02d}:00{zone}"


def write_systemd(call: Call, folder: Path) -> list[Path]:
    """Write both units into `folder`, ~/.config/systemd/user for a user's own."""
    units = {folder / name: text for name, text in systemd_units(call).items()}
    for path, text in units.items():
        write_whole(path, text)
    return list(units)


def _escaped(text: str) -> str:
    """Within quotes, where systemd expands %."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
