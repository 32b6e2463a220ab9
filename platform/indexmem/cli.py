"""The command line: `indexmem VERB SPEC [key=value ...]`. The jobs/ scripts call the same verbs.

User mistakes print one message and exit with code 2, before Ray starts. A verb is a file in commands/, which says what
it is called with, and one in workflows/, which does it and is imported only then.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from indexmem import __version__
from indexmem.commands import assets, distill, evaluate, methods, nightly, pretrain, report, submit, sweep, sync, ui
from indexmem.errors import UserError
from indexmem.files import unwritable

COMMANDS = (
    distill,
    pretrain,
    sweep,
    evaluate,
    report,
    sync,
    nightly,
    submit,
    methods,
    assets,
    ui,
)  # in the order of the help text


# A full or read-only disk, a file where a folder should be, no right to it: nothing that a traceback explains.
OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 done with failures, 2 a mistake in the input."""
    # The terminal belongs to our own progress lines.
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
        os.environ.setdefault(name, "1")
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse gives up on overrides that come after an option.
    if any("=" not in word or word.startswith("-") for word in rest) or (rest and "overrides" not in arguments):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    try:
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        print(f"error: {unwritable(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. What is finished is stored; the same command goes on from here.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="indexmem", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"indexmem {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for command in COMMANDS:
        command.add(verbs)
    return parser
