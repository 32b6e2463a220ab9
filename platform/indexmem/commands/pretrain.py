"""`indexmem pretrain SPEC`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from indexmem.commands.spec_arguments import add_spec_verb, load_spec

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs

TEXT = "train the testbed, a small model that retrieves (Ray Train)"


def add(verbs: Verbs) -> None:
    verb = add_spec_verb(verbs, "pretrain", TEXT, starts_ray=True)
    verb.set_defaults(run=run)
    verb.add_argument("--without-ray", type=Path, metavar="FOLDER", help="in this process, or as a rank of torchrun")
    verb.add_argument("--minutes", type=float, help="with --without-ray: as many steps as this time has room for")
    verb.add_argument(
        "--stop-after", type=float, metavar="MINUTES", help="with --without-ray: end this call then, to go on"
    )
    verb.add_argument("--ship", action="store_true", help="put the trained model into the package, as `testbed`")
    verb.add_argument("--documents", type=Path, metavar="JSONL", help="write training documents for distillation")
    verb.add_argument("--count", type=int, default=1200, help="with --documents: how many")
    verb.add_argument("--length", type=int, default=2048, help="with --documents: tokens of each at most")
    verb.add_argument("--scores", type=Path, metavar="JSON", help="with --ship: what testbed_scores.py wrote")


def run(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.pretrain import make_documents, pretrain, pretrain_locally, ship_model

    experiment = load_spec(arguments)
    if arguments.documents is not None:
        count, length = arguments.count, arguments.length
        return make_documents(experiment, arguments.documents, count, length, dry_run=arguments.dry_run)
    if arguments.ship:
        return ship_model(experiment, arguments.without_ray, arguments.scores)
    if arguments.without_ray is not None:
        return pretrain_locally(
            experiment, arguments.without_ray, arguments.minutes, arguments.stop_after, dry_run=arguments.dry_run
        )
    return pretrain(experiment, dry_run=arguments.dry_run, address=arguments.address)
