"""`indexmem ui`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    verb = verbs.add_parser("ui", help="serve the MLflow UI of a run root on 127.0.0.1")
    verb.set_defaults(run=run)
    verb.add_argument("--root", help="run root; default: $INDEXMEM_HOME/runs")
    verb.add_argument("--port", type=int, default=5000)


def run(arguments: argparse.Namespace) -> int:
    from indexmem.config.spec import home
    from indexmem.tracking.server import serve

    root = Path(arguments.root).expanduser().absolute() if arguments.root else home() / "runs"
    return serve(root, arguments.port)
