"""The command line: `indexmem VERB SPEC [key=value ...]`. The jobs/ scripts call the same verbs.

User mistakes print one message and exit with code 2, before Ray starts. Heavy imports happen inside the verbs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from indexmem import __version__
from indexmem.config.load import load
from indexmem.config.schema import Experiment
from indexmem.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 done with failures, 2 a mistake in the input."""
    # The terminal belongs to our own progress lines.
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
        os.environ.setdefault(name, "1")
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse gives up on overrides that come after an option.
    if any("=" not in word or word.startswith("-") for word in rest) or (rest and "overrides" not in arguments):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    try:
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. What is finished is stored; the same command goes on from here.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="indexmem", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"indexmem {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, run, text in (
        ("distill", _distill, "train the spec's indexer (Ray Train)"),
        ("eval", _eval, "evaluate the spec's grid of cells (Ray), publish to MLflow, write the report"),
        ("report", _report, "write the report again from stored rows"),
        ("sync", _sync, "publish stored results to MLflow, for example after the server was down"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(run=run)
        verb.add_argument("spec", help="YAML spec, for example sweeps/smoke.yaml")
        verb.add_argument("overrides", nargs="*", metavar="key=value", help="for example grid.samples=10")
        verb.add_argument("--model", help="short for model.id=...: a built-in model, a folder or a hub id")
        if name in ("distill", "eval"):
            verb.add_argument("--dry-run", action="store_true", help="print the plan; start nothing")
            verb.add_argument("--address", help="Ray cluster; default: RAY_ADDRESS, else a private one on this machine")
    methods = verbs.add_parser("methods", help="list the eviction methods that a grid can compare")
    methods.set_defaults(run=_methods)
    assets = verbs.add_parser("assets", help="fetch and verify the built-in model and texts")
    assets.set_defaults(run=_assets)
    ui = verbs.add_parser("ui", help="serve the MLflow UI of a run root on 127.0.0.1")
    ui.set_defaults(run=_ui)
    ui.add_argument("--root", help="run root; default: $INDEXMEM_HOME/runs")
    ui.add_argument("--port", type=int, default=5000)
    return parser


def _load(arguments: argparse.Namespace) -> Experiment:
    overrides = list(arguments.overrides)
    if arguments.model:
        overrides.append(f"model.id={arguments.model}")
    return load(arguments.spec, overrides)


def _distill(arguments: argparse.Namespace) -> int:
    from indexmem.commands import distill

    return distill(_load(arguments), dry_run=arguments.dry_run, address=arguments.address)


def _eval(arguments: argparse.Namespace) -> int:
    from indexmem.commands import evaluate

    return evaluate(_load(arguments), dry_run=arguments.dry_run, address=arguments.address)


def _report(arguments: argparse.Namespace) -> int:
    from indexmem.commands import report

    return report(_load(arguments))


def _sync(arguments: argparse.Namespace) -> int:
    from indexmem.commands import sync

    return sync(_load(arguments))


def _methods(arguments: argparse.Namespace) -> int:
    from indexmem.eviction.methods.listing import methods_table

    print(methods_table())
    return 0


def _assets(arguments: argparse.Namespace) -> int:
    from indexmem.models import assets, texts

    for name in assets.BUILTIN_MODELS:
        print(f"{name}: {assets.ensure_model(name)}")
    for name in texts.BUILTIN_TEXTS:
        print(f"{name}: {len(texts.documents(name))} documents")
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    from indexmem.config.spec import home
    from indexmem.tracking.server import serve

    root = Path(arguments.root).expanduser().absolute() if arguments.root else home() / "runs"
    return serve(root, arguments.port)
