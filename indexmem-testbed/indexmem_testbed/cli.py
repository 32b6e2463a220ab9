"""`python -m indexmem_testbed SPEC [key=value ...]`: train the testbed and put it into the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from indexmem.cli import ON_RAY
from indexmem.commands.parser import Arguments, add_arguments, argument, overrides_of, run_command
from indexmem_testbed.config import load_pretraining

TEXT = "Train the testbed, a small model that retrieves (Ray Train)."
PRETRAIN = (
    argument("--without-ray", type=Path, metavar="FOLDER", help="in this process, or as a rank of torchrun"),
    argument("--minutes", type=float, help="with --without-ray: as many steps as this time has room for"),
    argument("--stop-after", type=float, metavar="MINUTES", help="with --without-ray: end this call then, to go on"),
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
    add_arguments(parser, [*ON_RAY, *PRETRAIN])
    return parser


def run(arguments: Arguments) -> int:
    from indexmem_testbed.workflow import make_documents, run_pretraining, run_without_ray, ship_model

    spec = load_pretraining(arguments.spec, overrides_of(arguments))
    if arguments.documents is not None:
        count, length = arguments.count, arguments.length
        return make_documents(spec, arguments.documents, count, length, dry_run=arguments.dry_run)
    if arguments.ship:
        return ship_model(spec, arguments.without_ray, arguments.scores)
    if arguments.without_ray is not None:
        minutes, stop_after = arguments.minutes, arguments.stop_after
        return run_without_ray(spec, arguments.without_ray, minutes, stop_after, dry_run=arguments.dry_run)
    return run_pretraining(spec, dry_run=arguments.dry_run, address=arguments.address)
