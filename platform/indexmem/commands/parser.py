"""A table of commands, how it becomes a parser, and how a command is run: mistakes print one message and give 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from indexmem.errors import UserError
from indexmem.extras import missing_dependency
from indexmem.fetching import NotAtHand, nothing_fetched
from indexmem.files import FOLDER_FAULTS, unwritable

Arguments = argparse.Namespace
Argument = tuple[tuple[str, ...], Mapping[str, Any]]  # names, settings


def argument(*names: str, **settings: Any) -> Argument:
    """`names` and `settings` as `add_argument` takes them."""
    return names, settings


@dataclass(frozen=True)
class Command:
    """A row of the table. `call` returns the exit code."""

    name: str
    help: str | None  # None: not listed
    call: Callable[[Arguments], int] | None = None
    arguments: tuple[Argument, ...] = ()
    actions: tuple[Command, ...] = ()  # commands below this one, which then has no call of its own


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse the words, and call what the parser has set as `call`; returns its exit code, or 2 for a mistake.

    1 for a dry run that has no plan without something that is not on this machine.
    """
    # The terminal belongs to our own progress lines.
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
        os.environ.setdefault(name, "1")
    arguments, rest = parser.parse_known_args(argv)
    # argparse gives up on overrides that come after an option.
    if any("=" not in word or word.startswith("-") for word in rest) or (rest and "overrides" not in arguments):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    dry_run = getattr(arguments, "dry_run", False)
    try:
        with nothing_fetched() if dry_run else nullcontext():
            return int(arguments.call(arguments))
    except NotAtHand as error:
        print(
            f"{error}. Without it there is no plan; what of the spec can be checked without it is right.",
            file=sys.stderr,
        )
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        absent = missing_dependency(error)
        if absent is None:
            raise
        print(f"error: {absent}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in FOLDER_FAULTS:
            raise
        print(f"error: {unwritable(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. What is finished is stored; the same command goes on from here.", file=sys.stderr)
        return 130


def add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command], metavar: str) -> None:
    """Give the parser these commands, one of which is then required."""
    below = parser.add_subparsers(required=True, metavar=metavar)
    for command in commands:
        listed: dict[str, Any] = {} if command.help is None else {"help": command.help}
        child = below.add_parser(command.name, description=command.help, **listed)
        add_arguments(child, command.arguments)
        if command.actions:
            add_commands(child, command.actions, "ACTION")
        else:
            child.set_defaults(call=command.call)


def add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    """Give the parser these arguments."""
    for names, settings in arguments:
        parser.add_argument(*names, **settings)


def overrides_of(arguments: Arguments) -> list[str]:
    """The overrides that a command was given, that of --model included."""
    return [*arguments.overrides, *([f"model.id={arguments.model}"] if arguments.model else [])]
