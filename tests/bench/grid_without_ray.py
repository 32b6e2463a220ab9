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
from collections.abc import Iterator, Sequence

import torch

from indexmem.config.load import load
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.cells import Task
from indexmem.evaluate.grid import plan
from indexmem.results.schema import OK
from indexmem.tracking.provenance import provenance


def groups(tasks: Sequence[Task], at_once: int) -> Iterator[tuple[Task, ...]]:
    """Tasks of one benchmark, so many together; all benchmarks advance alike, so that a stop leaves none behind."""
    waiting: dict[str, list[Task]] = {}
    for task in tasks:
        same = waiting.setdefault(task.sample.benchmark, [])
        same.append(task)
        if len(same) == at_once:
            yield tuple(waiting.pop(task.sample.benchmark))
    yield from map(tuple, waiting.values())


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
    # By the name of a sample, since what remains changes while the other parts work.
    tasks = [task for task in grid.remaining() if zlib.crc32(task.sample.id.encode()) % parts == number - 1]
    print(f"{len(tasks)} samples to evaluate in {len(grid.cells)} cells", flush=True)
    evaluator = CellEvaluator.load(experiment, grid.methods, grid.checkpoint, provenance())
    done = failed = 0
    for group in groups(tasks, arguments.at_once):
        if time.monotonic() - began > 60 * arguments.minutes:
            break
        with torch.inference_mode():
            rows, retention = evaluator.evaluate(group)
        partition = grid.partition(group[0].sample.benchmark)
        grid.store.append(rows, partition)
        grid.store.append(retention, partition, "retention")
        done, failed = done + len(rows), failed + sum(row["status"] != OK for row in rows)
        print(
            f"{group[0].sample.benchmark}: {done} rows, {failed} failed, {time.monotonic() - began:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
