"""`indexmem ui`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs


def add(verbs: Verbs) -> None:
    text = "serve live runs, reports and MLflow of a run root on 127.0.0.1"
    verb = verbs.add_parser("ui", help=text, description=text)
    verb.set_defaults(run=run)
    verb.add_argument("--root", help="run root; default: $INDEXMEM_HOME/runs")
    verb.add_argument("--port", type=int, default=5001, help="of runs and reports; default: 5001")
    verb.add_argument("--mlflow-port", type=int, default=5000, help="of MLflow; default: 5000")


def run(arguments: argparse.Namespace) -> int:
    from indexmem.config.spec import home
    from indexmem.files import expanded
    from indexmem.workflows.ui import ui

    root = expanded(arguments.root).absolute() if arguments.root else home() / "runs"
    return ui(root, arguments.port, arguments.mlflow_port)
