"""`python -m indexmem_testbed SPEC [key=value ...]`: train the testbed and put it into the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from indexmem.cli import SPEC
from indexmem.commands.parser import Arguments, add_arguments, argument, overrides_of, run_command
from indexmem_testbed.config import load_pretraining

TEXT = "Train the testbed, a small model that retrieves, in this process or as a rank of torchrun."
PRETRAIN = (
    argument("--dry-run", action="store_true", help="check the spec and say what would be done"),
    # Its name while there was a second way, on Ray, is still understood.
    argument("--folder", "--without-ray", type=Path, help="of the training; without it build/ and the spec's name"),
    argument("--stop-after", type=float, metavar="MINUTES", help="end this call then, to go on"),
    argument("--ship", action="store_true", help="put the trained model into indexmem, as `testbed`"),
    argument("--documents", type=Path, metavar="JSONL", help="write training documents for distillation"),
    argument("--count", type=int, default=1200, help="with --documents: how many"),
    argument("--length", type=int, default=2048, help="with --documents: tokens of each at most"),
    argument("--scores", type=Path, metavar="JSON", help="with --ship: what testbed_scores.py wrote"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 2 a mistake in the input, 3 stopped with a checkpoint to go on from."""
    return run_command(make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    """The parser of this command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m indexmem_testbed", description=TEXT)
    parser.set_defaults(call=run)
    add_arguments(parser, [*SPEC, *PRETRAIN])
    return parser


def run(arguments: Arguments) -> int:
    from indexmem_testbed.workflow import make_documents, run_pretraining, ship_model

    spec = load_pretraining(arguments.spec, overrides_of(arguments))
    if arguments.documents is not None:
        count, length = arguments.count, arguments.length
        return make_documents(spec, arguments.documents, count, length, dry_run=arguments.dry_run)
    folder = arguments.folder or Path("build") / spec.name
    if arguments.ship:
        return ship_model(folder, arguments.scores)
    return run_pretraining(spec, folder, arguments.stop_after, dry_run=arguments.dry_run)
