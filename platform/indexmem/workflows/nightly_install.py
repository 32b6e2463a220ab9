"""`indexmem nightly install` and `watch`: what calls the nightly command."""

from __future__ import annotations

import datetime as dt
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from indexmem.config.nightly import load_nightly
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.schedule.call import Call
from indexmem.schedule.cronjob import kubernetes_cronjob
from indexmem.schedule.crontab import crontab_lines, write_crontab
from indexmem.schedule.night import Nights
from indexmem.schedule.slots import Slots
from indexmem.schedule.systemd import systemd_units, write_systemd
from indexmem.schedule.watch import Watch
from indexmem.signals import StopSignals
from indexmem.workflows.terminal import say

LOOK_SECONDS = 0.5  # between looks whether a night has ended
Kind = Literal["systemd", "cron", "kubernetes"]


def install(path: str, overrides: Sequence[str], kind: Kind, *, write: bool, image: str) -> int:
    """Print what a scheduler needs; with `write`, put it into place for this user.

    Raises UserError for a schedule that this kind of scheduler cannot express, and to write a manifest.
    """
    call = _call(path, overrides)
    if kind == "kubernetes":
        if write:
            raise UserError("A CronJob is not written here: pipe it into `kubectl apply -f -`.")
        print(kubernetes_cronjob(call, image, path), end="")
    elif kind == "cron":
        print(crontab_lines(call), end="")
        if write:
            write_crontab(call)
            say("written to your crontab; `crontab -l` shows it")
    else:
        for name, text in systemd_units(call).items():
            print(f"# {name}\n{text}")
        if write:
            for unit in write_systemd(call, Path.home() / ".config" / "systemd" / "user"):
                say(f"wrote {unit}")
            say(
                f"start it:  systemctl --user daemon-reload && systemctl --user enable --now {call.name}.timer\n"
                "without a login session, once:  loginctl enable-linger"
            )
    return 0


def watch(path: str, overrides: Sequence[str]) -> int:
    """Call `indexmem nightly run` at every slot, until interrupted. Each night is a process of its own."""
    call = _call(path, overrides)

    def run(date: dt.date) -> int:
        # Its own session: Ctrl-C comes here and is passed on once; a second signal would cut the night short.
        child = subprocess.Popen([*call.command, "--date", date.isoformat()], start_new_session=True)
        with StopSignals() as stop:
            while child.poll() is None:
                if stop.received is not None:
                    child.terminate()
                    child.wait()
                    raise KeyboardInterrupt
                time.sleep(LOOK_SECONDS)
        return child.returncode

    Watch(Slots.of(call.spec), Nights.of(call.spec), run, say).forever()
    return 0


def _call(path: str, overrides: Sequence[str]) -> Call:
    spec = load_nightly(path, overrides)
    Slots.of(spec)
    return Call(spec, expanded(path).absolute(), tuple(overrides))
