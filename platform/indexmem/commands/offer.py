"""`python -m indexmem.commands.offer SPEC [--rows] [--modules]`: the job of `indexmem fetch`, on the cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from indexmem.cluster.offer import offer
from indexmem.commands.parser import run_command
from indexmem.config.load import load
from indexmem.config.nightly import MODULES, is_nightly, load_nightly
from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.errors import UserError


def files_of(experiment: Experiment, *, rows: bool, modules: bool) -> list[Path]:
    """Report and tables of a spec's grid and sweep; all stored rows of its benchmarks; its trained modules."""
    reports = run_root(experiment) / "reports"
    found = [*reports.glob(f"{experiment.name}.html"), *reports.glob(f"{experiment.name}-sweep.*")]
    found += _below(reports / experiment.name)
    if rows:
        from indexmem.evaluate.grid import plan

        grid = plan(experiment)
        tables = run_root(experiment) / "results"
        for table in ("rows", "retention"):
            found += [file for name in grid.partitions for file in _below(tables / table / name)]
    if modules:
        from indexmem.distill.runs import DistillRun

        run = DistillRun.of(experiment)
        found += [*_below(run.final), *_below(run.history)]
    return found


def files_of_nights(folder: Path, *, rows: bool, modules: bool) -> list[Path]:
    """Pages and verdicts of all nights in `folder`; rows and trained modules of the newest."""
    nights = sorted(folder.glob("*-*-*"), reverse=True)
    found = [file for place in (folder, *nights) for file in _files(place.glob("*.*"))]
    for night in nights[:1]:
        found += _files(night.glob("*/results/**/*.parquet")) if rows else ()
        found += _files(night.glob(f"{MODULES}/*/final/**/*")) if modules else ()
    return found


def offer_results(arguments: argparse.Namespace) -> int:
    """Offer the files until the job is stopped. Raises UserError when there are none."""
    if is_nightly(arguments.spec):
        nightly = load_nightly(arguments.spec)
        name, root = nightly.name, run_root(nightly.place)
        files = files_of_nights(root / "nightly" / name, rows=arguments.rows, modules=arguments.modules)
    else:
        experiment = load(arguments.spec)
        name, root = experiment.name, run_root(experiment)
        files = files_of(experiment, rows=arguments.rows, modules=arguments.modules)
    if not files:
        raise UserError(
            f"There is no report of '{name}' in {root} on the cluster. Has its job ended, and did it have the same "
            "run.root and --env INDEXMEM_HOME?"
        )
    offer({str(file.relative_to(root)): file for file in files})
    return 0


def _below(folder: Path) -> Iterator[Path]:
    return _files(folder.rglob("*"))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Those that are whole: drafts begin with a dot."""
    return (path for path in paths if path.is_file() and not path.name.startswith("."))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--modules", action="store_true")
    parser.set_defaults(call=offer_results)
    sys.exit(run_command(parser, None))
