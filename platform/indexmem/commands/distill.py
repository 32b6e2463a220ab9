"""`indexmem distill SPEC`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from indexmem.commands.spec_arguments import add_spec_verb, load_spec

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    add_spec_verb(verbs, "distill", "train the spec's indexer (Ray Train)", starts_ray=True).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.distill import distill

    return distill(load_spec(arguments), dry_run=arguments.dry_run, address=arguments.address)
