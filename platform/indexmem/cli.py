"""The command line: `indexmem COMMAND SPEC [key=value ...]`. The jobs/ scripts call the same commands.

One table says what each command is called with. What it does is in commands/, which is imported only when it is run,
so that `--help` is quick. Mistakes of users print one message and exit with code 2, before Ray starts.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from indexmem import __version__
from indexmem.commands.parser import Arguments, Command, add_commands, argument, overrides_of, run_command
from indexmem.errors import UserError
from indexmem.files import expanded

if TYPE_CHECKING:
    from indexmem.config.schema import Experiment


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 done with failures, 2 a mistake in the input."""
    return run_command(make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands in the table."""
    parser = argparse.ArgumentParser(prog="indexmem", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"indexmem {__version__}")
    add_commands(parser, COMMANDS, "COMMAND")
    return parser


def _spec(arguments: Arguments) -> Experiment:
    """The spec that a command was given. Raises UserError for a spec that is not valid."""
    from indexmem.config.load import load

    return load(arguments.spec, overrides_of(arguments))


def _date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no date such as 2026-11-28") from None


def _on_ray(verb: str) -> Callable[[Arguments], int]:
    """What a command of a spec does on Ray: `VERB_spec` of `indexmem.commands.VERB`, imported when it is called."""

    def call(arguments: Arguments) -> int:
        experiment = _spec(arguments)  # its mistakes need no heavy imports
        command = getattr(import_module(f"indexmem.commands.{verb}"), f"{verb}_spec")
        return int(command(experiment, dry_run=arguments.dry_run, address=arguments.address))

    return call


def _table(arguments: Arguments) -> int:
    from indexmem.config.table import load_table

    spec, of_runs = load_table(arguments.spec, arguments.overrides)
    from indexmem.commands.table import table_spec

    return table_spec(spec, of_runs)


def _report(arguments: Arguments) -> int:
    from indexmem.commands.report import report_spec

    return report_spec(_spec(arguments), images=arguments.images)


def _board(arguments: Arguments) -> int:
    from indexmem.commands.board import board, check_stores

    return check_stores(arguments.stores) if arguments.check else board(arguments.stores, expanded(arguments.out))


def _sync(arguments: Arguments) -> int:
    from indexmem.commands.sync import sync_spec

    return sync_spec(_spec(arguments))


def _nightly_run(arguments: Arguments) -> int:
    from indexmem.config.nightly import load_nightly

    spec = load_nightly(arguments.spec, arguments.overrides)  # its mistakes need no heavy imports
    from indexmem.commands.nightly import run_night

    return run_night(spec, arguments.date, dry_run=arguments.dry_run, address=arguments.address)


def _nightly_status(arguments: Arguments) -> int:
    from indexmem.config.nightly import load_nightly
    from indexmem.nightly.night import Nights
    from indexmem.nightly.pages import nights_table

    print(nights_table(Nights.of(load_nightly(arguments.spec, arguments.overrides)), arguments.last))
    return 0


def _submit(arguments: Arguments) -> int:
    if arguments.command == "pretrain":
        return _pretrain_moved(arguments)
    from indexmem.commands.submit import Submission, submit_nightly, submit_spec

    how = Submission.of(arguments)
    if arguments.command == "nightly":
        from indexmem.config.nightly import load_nightly

        return submit_nightly(load_nightly(arguments.spec, overrides_of(arguments)), how)
    return submit_spec(arguments.command, _spec(arguments), how)


def _fetch(arguments: Arguments) -> int:
    from indexmem.commands.fetch import fetch_results
    from indexmem.commands.sending import Parcel, Sending, suites_of
    from indexmem.config.nightly import is_nightly, load_nightly

    sending = Sending.of(arguments)
    if is_nightly(arguments.spec):
        nightly = load_nightly(arguments.spec, overrides_of(arguments))
        parcel = Parcel.of_nightly(nightly, suites_of(nightly), sending)
    else:
        parcel = Parcel.of_spec(_spec(arguments), sending)
    to = expanded(arguments.to).absolute()
    return fetch_results(parcel, to, rows=arguments.rows, modules=arguments.modules)


def _methods(arguments: Arguments) -> int:
    from indexmem.eviction.methods.listing import methods_table

    print(methods_table())
    return 0


def _export(arguments: Arguments) -> int:
    from indexmem.export.folder import export_checkpoint

    folder = export_checkpoint(arguments.checkpoint, expanded(arguments.to).absolute(), onnx=arguments.onnx)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}. How to use it: docs/serving.md")
    return 0


def _benchmarks(arguments: Arguments) -> int:
    from indexmem.benchmarks.listing import benchmark_listing

    print(benchmark_listing())
    return 0


def _assets(arguments: Arguments) -> int:
    from indexmem.models import assets
    from indexmem.texts.documents import BUILTIN_TEXTS, documents_of

    for name in assets.model_names():
        print(f"{name}: {assets.ensure_model(name)}")
    for name in BUILTIN_TEXTS:
        print(f"{name}: {len(documents_of(name))} documents")
    return 0


def _ui(arguments: Arguments) -> int:
    from indexmem.commands.ui import ui
    from indexmem.config.spec import home

    root = expanded(arguments.root).absolute() if arguments.root else home() / "runs"
    return ui(root, arguments.port, browser=arguments.open)


def _pretrain_moved(arguments: Arguments) -> int:
    raise UserError(
        "The testbed is trained by a package of its own, indexmem-testbed: python jobs/pretrain_testbed.py SPEC. "
        "docs/testbed.md says how to install it and how to run it as a job on a cluster."
    )


def _no_scheduler(arguments: Arguments) -> int:
    raise UserError(
        "indexmem no longer writes timers and runs no clock. docs/operations.md, 'What starts it', has a line for "
        "crontab; deploy/systemd has a timer, and deploy/kubernetes/nightly.yaml is a CronJob."
    )


ADDRESS = argument("--address", help="Ray cluster; default: RAY_ADDRESS, else a private one on this machine")
SPEC = (
    argument("spec", help="YAML spec, for example sweeps/smoke.yaml"),
    argument("overrides", nargs="*", metavar="key=value", help="for example grid.samples=10"),
    argument("--model", help="short for model.id=...: a built-in model, a folder or a hub id"),
)
ON_RAY = (
    *SPEC,
    argument(
        "--dry-run", action="store_true", help="print the plan; start and fetch nothing, store nothing but caches"
    ),
    ADDRESS,
)
NIGHTLY = (
    argument("spec", help="YAML spec, for example sweeps/nightly.yaml"),
    argument("overrides", nargs="*", metavar="key=value", help="for example compare.level=0.05"),
)
TABLE = (
    argument("spec", help="YAML spec of a table, for example sweeps/paper/table1.yaml"),
    argument("overrides", nargs="*", metavar="key=value", help="the table's own, or a.b=value for all of its runs"),
)
NIGHT = (
    argument("--date", type=_date, help="of the night, YYYY-MM-DD; default: that of the newest slot"),
    argument("--dry-run", action="store_true", help="print the night's steps; start nothing"),
    ADDRESS,
)
SENDING = (
    argument("--address", help="job server; default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265"),
    argument(
        "--files", choices=("send", "shared"), default="send",
        help="files that the spec names: send them, or leave them out where the nodes have them under the same paths",
    ),
    argument("--code", choices=("send", "installed"), default="send", help="this package, or that of the nodes"),
    argument("--install", choices=("uv", "pip"), help="put the package's dependencies on the nodes first (not Ray)"),
    argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the job; not for secrets"),
    argument("--to", default="fetched", metavar="FOLDER", help="where results are brought; default: fetched"),
)  # fmt: skip
SUBMIT = (
    argument(
        "command", choices=("run", "distill", "pretrain", "eval", "sweep", "report", "sync", "nightly"),
        help="what the job does; nightly: one night of a nightly spec",
    ),
    *SPEC,
    *SENDING,
    argument("--follow", action="store_true", help="print the job's log until it ends, and end as it did"),
    argument("--fetch", action="store_true", help="follow, then bring report and tables to --to"),
    argument(
        "--if-running", choices=("join", "refuse"), default="join", help="for a job with this spec that is under way"
    ),
    argument("--dry-run", action="store_true", help="check the spec, print what would be sent; send nothing"),
)  # fmt: skip
FETCH = (
    *SPEC,
    *SENDING,
    argument("--rows", action="store_true", help="the stored rows of the spec's benchmarks, too"),
    argument("--modules", action="store_true", help="the modules that the spec has trained, too"),
)
EXPORT = (
    argument("checkpoint", help="trained modules: a folder, a shipped name such as testbed-modules, or a hub id"),
    argument("--to", required=True, metavar="FOLDER", help="a new folder"),
    argument("--onnx", action="store_true", help="the scorer as ONNX too (needs the extra 'onnx')"),
)
BOARD = (
    argument(
        "stores", nargs="+", metavar="[WHO=]STORE",
        help="a run root, a folder or file of rows, results of kvpress; paths or URIs",
    ),
    argument("--out", default="board", metavar="FOLDER", help="where index.html is written; default: board"),
    argument("--check", action="store_true", help="say what is wrong with the rows, or what they are; write nothing"),
)  # fmt: skip
UI = (
    argument("--root", help="run root; default: $INDEXMEM_HOME/runs"),
    argument("--port", "--mlflow-port", type=int, default=5000, help="of MLflow; default: 5000"),
    argument("--open", action="store_true", help="show the evaluations in a browser"),
)
ANY_WORDS = (argument("words", nargs=argparse.REMAINDER),)
COMMANDS = (
    Command("run", "do all that a spec describes: train what its grid needs, evaluate, report", _on_ray("run"), ON_RAY),
    Command("distill", "train the spec's indexer (Ray Train)", _on_ray("distill"), ON_RAY),
    Command("pretrain", None, _pretrain_moved, ANY_WORDS),
    Command("sweep", "search for good settings: train and evaluate trials (Ray Tune)", _on_ray("sweep"), ON_RAY),
    Command("eval", "evaluate the spec's grid of cells (Ray), publish, write the report", _on_ray("evaluate"), ON_RAY),
    Command(
        "report", "write the report again from stored rows", _report,
        (*SPEC, argument("--images", action="store_true", help="charts as PNG and SVG too (needs Chromium)")),
    ),
    Command("table", "scores of several runs side by side, for example as a paper prints them", _table, TABLE),
    Command("sync", "publish stored results to MLflow, for example after the server was down", _sync, SPEC),
    Command(
        "nightly", "run suites every night and say what moved",
        actions=(
            Command("run", "run one night, or finish it; one that is done does nothing", _nightly_run, NIGHTLY + NIGHT),
            Command(
                "status", "list the last nights", _nightly_status,
                (*NIGHTLY, argument("--last", type=int, default=14, metavar="N", help="how many")),
            ),
            Command("install", None, _no_scheduler, ANY_WORDS),
            Command("watch", None, _no_scheduler, ANY_WORDS),
        ),
    ),
    Command("submit", "run a command as a job on a cluster; it goes on when this machine leaves", _submit, SUBMIT),
    Command("fetch", "bring report and tables of a spec's jobs from a cluster to this machine", _fetch, FETCH),
    Command("export", "write a trained indexer as a folder that needs torch and safetensors alone", _export, EXPORT),
    Command("board", "join result stores of many people into one page", _board, BOARD),
    Command("methods", "list the eviction methods that a grid can compare, and where each comes from", _methods),
    Command("benchmarks", "list the benchmarks that a grid can ask, and where each comes from", _benchmarks),
    Command("assets", "fetch and verify the built-in model and texts", _assets),
    Command("ui", "serve the MLflow of a run root on 127.0.0.1 and say where its reports are", _ui, UI),
)  # in the order of the help text  # fmt: skip
