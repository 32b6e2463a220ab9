"""`indexmem report SPEC`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from indexmem.commands.spec_arguments import add_spec_verb, load_spec

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    verb = add_spec_verb(verbs, "report", "write the report again from stored rows")
    verb.add_argument("--images", action="store_true", help="charts as PNG and SVG too (needs Chromium)")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.workflows.report import report

    return report(load_spec(arguments), images=arguments.images)
