"""`indexmem sync SPEC`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from indexmem.commands.spec_arguments import add_spec_verb, load_spec

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    add_spec_verb(
        verbs, "sync", "publish stored results to MLflow, for example after the server was down"
    ).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.sync import sync

    return sync(load_spec(arguments))
