"""Evaluates what a spec's grid lacks in this process alone, on a machine that has neither Ray nor MLflow.

    python tests/bench/grid_without_ray.py sweeps/testbed.yaml grid.benchmarks='[vt]' run.root=FOLDER

Rows go to the row store under the run root, as those of `jobs/eval_grid.py` do and under the same names, so a folder of
them copied into another run root is what `indexmem report` shows there. Several processes share a GPU when the model is
small: each has benchmarks of its own, or a part of the samples (`--part 1/2` and `--part 2/2`). It goes on where it
stopped. $INDEXMEM_GIT_COMMIT names the code where git cannot.
"""

from __future__ import annotations

import argparse
import time
import zlib

import numpy as np

from indexmem.config.load import load
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.driver import assignment_of
from indexmem.evaluate.grid import plan
from indexmem.evaluate.local import evaluate_units
from indexmem.evaluate.progress import Progress
from indexmem.evaluate.worker import Worker
from indexmem.provenance import provenance


def part_of(text: str) -> tuple[int, int]:
    """The part that `2/3` names: 2, of 3."""
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise argparse.ArgumentTypeError(f"'{text}' is no part; expected one from 1/{parts} to {parts}/{parts}")
    return number, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--at-once", type=int, default=8, help="samples that decode together")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="I/N", help="only these of the samples")
    arguments = parser.parse_args()
    began = time.monotonic()
    experiment = load(arguments.spec, arguments.overrides)
    grid = plan(experiment)
    number, parts = arguments.part
    # By the name of a sample. No leases: they hold cells, and all parts work on the same ones.
    missing = {
        name: missing_SC & np.array([[zlib.crc32(s.id.encode()) % parts == number - 1] for s in grid.samples[name]])
        for name, missing_SC in grid.missing().items()
    }
    progress = Progress(sum(int(missing_SC.sum()) for missing_SC in missing.values()))
    print(f"{progress.total} rows to evaluate in {len(grid.cells)} cells", flush=True)
    evaluator = CellEvaluator.load(experiment, grid.methods, grid.checkpoint, provenance())
    worker = Worker(assignment_of(experiment, grid, provenance()), evaluator)
    progress.start()
    for now in evaluate_units(worker, grid, missing, progress, arguments.at_once):
        print(now.line(), flush=True)
        if time.monotonic() - began > 60 * arguments.minutes:
            break


if __name__ == "__main__":
    main()
