"""The block of a crontab that starts nights."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from indexmem.config.spec import home
from indexmem.errors import UserError
from indexmem.schedule.call import SECRETS, Call


def crontab_lines(call: Call) -> str:
    """A block of a crontab: at the slot, and at boot, when a night may have been missed or cut off.

    Raises UserError for a time zone, which crontabs in general do not know.
    """
    if call.spec.timezone:
        raise UserError(
            f"crontabs use the machine's time zone, and this spec has timezone={call.spec.timezone}. Use --kind "
            "systemd, or timezone=null."
        )
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in call.environment.items())
    secrets = f"set -a; test -r ~/{SECRETS} && . ~/{SECRETS};"
    log = shlex.quote(str(home() / f"{call.name}.log"))
    line = f"{secrets} cd {shlex.quote(str(Path.cwd()))} && {variables} {shlex.join(call.command)} >>{log} 2>&1"
    line = " ".join(line.split()).replace("%", r"\%")  # a bare % ends the command in a crontab
    begin, end = _marks(call)
    return f"{begin}\n{call.spec.cron} {line}\n@reboot sleep 300; {line}\n{end}\n"


def write_crontab(call: Call) -> None:
    """Put the block into the user's crontab, in the place of an earlier one. Raises UserError when there is no cron."""
    lines = crontab_lines(call)
    home().mkdir(parents=True, exist_ok=True)  # for the log
    try:
        listed = subprocess.run(["crontab", "-l"], capture_output=True, text=True)
        begin, end = map(re.escape, _marks(call))
        others = re.sub(rf"{begin}\n.*?{end}\n", "", listed.stdout if listed.returncode == 0 else "", flags=re.DOTALL)
        subprocess.run(["crontab", "-"], input=others + lines, text=True, check=True, capture_output=True)
    except FileNotFoundError:
        raise UserError("There is no crontab here. Use --kind systemd or `indexmem nightly watch`.") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"crontab refused the lines: {error.stderr.strip()}") from None


def _marks(call: Call) -> tuple[str, str]:
    return f"# begin {call.name}", f"# end {call.name}"
