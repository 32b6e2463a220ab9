"""`indexmem methods`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    verb = verbs.add_parser("methods", help="list the eviction methods that a grid can compare")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.eviction.methods.listing import methods_table

    print(methods_table())
    return 0
