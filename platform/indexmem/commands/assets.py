"""`indexmem assets`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    verb = verbs.add_parser("assets", help="fetch and verify the built-in model and texts")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.models import assets, texts

    for name in assets.model_names():
        print(f"{name}: {assets.ensure_model(name)}")
    for name in texts.BUILTIN_TEXTS:
        print(f"{name}: {len(texts.documents(name))} documents")
    return 0
