"""`indexmem sweep SPEC`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from indexmem.commands.spec_arguments import add_spec_verb, load_spec

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    add_spec_verb(
        verbs, "sweep", "search for good settings: train and evaluate trials (Ray Tune)", starts_ray=True
    ).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.sweep import sweep

    return sweep(load_spec(arguments), dry_run=arguments.dry_run, address=arguments.address)
