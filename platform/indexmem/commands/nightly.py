"""`indexmem nightly run|status|install|watch SPEC`."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs

TEXT = "run suites every night and say what moved"


def add(verbs: Verbs) -> None:
    actions = verbs.add_parser("nightly", help=TEXT, description=TEXT).add_subparsers(required=True, metavar="ACTION")

    action = _action(actions, "run", "run one night, or finish it; a night that is done does nothing", run)
    action.add_argument("--date", type=_date, help="of the night, YYYY-MM-DD; default: that of the newest slot")
    action.add_argument("--dry-run", action="store_true", help="print the night's steps; start nothing")
    action.add_argument("--address", help="Ray cluster; default: RAY_ADDRESS, else a private one on this machine")

    action = _action(actions, "status", "list the last nights", status)
    action.add_argument("--last", type=int, default=14, metavar="N", help="how many")

    action = _action(actions, "install", "print what makes a scheduler call `run`", install)
    action.add_argument("--kind", choices=("systemd", "cron", "kubernetes"), default="systemd")
    action.add_argument("--write", action="store_true", help="put it into place, for this user")
    action.add_argument("--image", default="indexmem:latest", help="container image, for kubernetes")

    _action(actions, "watch", "call `run` at every slot, in the foreground, until interrupted", watch)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.config.nightly import load_nightly

    spec = load_nightly(arguments.spec, arguments.overrides)  # its mistakes need no heavy imports
    from indexmem.workflows.nightly import run as run_night

    return run_night(spec, arguments.date, dry_run=arguments.dry_run, address=arguments.address)


def status(arguments: argparse.Namespace) -> int:
    from indexmem.config.nightly import load_nightly
    from indexmem.schedule.listing import nights_table
    from indexmem.schedule.night import Nights

    print(nights_table(Nights.of(load_nightly(arguments.spec, arguments.overrides)), arguments.last))
    return 0


def install(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.nightly_install import install as show

    return show(arguments.spec, arguments.overrides, arguments.kind, write=arguments.write, image=arguments.image)


def watch(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.nightly_install import watch as stay

    return stay(arguments.spec, arguments.overrides)


def _action(actions: Verbs, name: str, text: str, call: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=text, description=text)
    action.set_defaults(run=call)
    action.add_argument("spec", help="YAML spec, for example sweeps/nightly.yaml")
    action.add_argument("overrides", nargs="*", metavar="key=value", help="for example compare.level=0.05")
    return action


def _date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no date such as 2026-11-28") from None
