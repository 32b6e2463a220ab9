"""Scores of a model with its full cache, and of methods that evict, on RULER at several lengths; without Ray.

    python tests/bench/testbed_scores.py --model FOLDER/final --out scores.json --lengths 1024 2048 4096 --samples 200

The file is written again after each task, so that what is there at any time is whole; a task that fails is named and
left out. `scores` are those of the full cache, by length and task, which is what the model card shows; `methods` holds
those of each method and ratio.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexmem.benchmarks.base import Benchmark, BuildContext
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.load import validate
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.methods.names import FULL_CACHE
from indexmem.files import write_whole
from indexmem.texts.documents import load_texts

PROVENANCE = {"git_commit": "bench", "versions": {}, "host": "bench"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 2048, 4096])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--methods", nargs="*", default=[], help="beside the full cache")
    parser.add_argument("--ratios", nargs="*", type=float, default=[0.5, 0.9])
    parser.add_argument("--at-once", type=int, default=16, help="samples that decode together")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no task is begun after so many")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--haystack", default="essays-heldout")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def spec_of(args: argparse.Namespace, length: int) -> Experiment:
    model = {"id": args.model, "device": args.device, "dtype": args.dtype}
    methods = [FULL_CACHE, *args.methods]
    grid = {"methods": methods, "ratios": args.ratios, "benchmarks": ["ruler"], "length": length, "seed": args.seed}
    return validate({"model": model, "grid": grid}, "bench")


def cells_of(spec: Experiment, benchmark: str) -> tuple[GridCell, ...]:
    """One for the full cache, and one for each other method and ratio."""
    return tuple(
        GridCell(f"{method.label}@{budget}", method, budget, benchmark, "bench", "")
        for method in spec.grid.methods
        for budget in ([NOTHING_EVICTED] if method.name == FULL_CACHE else map(Budget.of_ratio, spec.grid.ratios))
    )


def scores_of(evaluator: CellEvaluator, benchmark: Benchmark, build: BuildContext, args: Any) -> dict[str, float]:
    """Mean score of each cell by its id, over the samples of one benchmark. AssertionError when a row failed."""
    cells = cells_of(evaluator.experiment, benchmark.name)
    found: dict[str, list[float]] = {}
    samples = benchmark.samples(args.samples, build)
    while some := list(islice(samples, args.at_once)):
        rows, _ = evaluator.evaluate([Task(sample, cells) for sample in some])
        for row in rows:
            assert row["status"] == "ok", f"{row['cell_id']}: {row['error_message']}"
            found.setdefault(row["cell_id"], []).append(row["score"])
    return {cell: float(np.mean(values)) for cell, values in found.items()}


def runs(args: argparse.Namespace) -> Iterator[tuple[int, CellEvaluator, Sequence[Benchmark]]]:
    """(length, what evaluates, its benchmarks): the model is loaded once."""
    backbone = None
    for length in args.lengths:
        spec = spec_of(args, length)
        methods = {method.label: MethodConfig(name=method.name) for method in spec.grid.methods}
        evaluator = CellEvaluator.load(spec, methods, None, PROVENANCE, backbone)
        backbone = evaluator.backbone
        yield length, evaluator, make_benchmarks(spec.grid.benchmarks)


def main() -> None:
    args, began = arguments(), time.monotonic()
    haystack = "\n\n".join(load_texts([args.haystack]))
    result: dict[str, Any] = {"model": args.model, "samples": args.samples, "seed": args.seed, "scores": {}}
    result |= {"methods": {}, "failed": {}}
    for length, evaluator, benchmarks in runs(args):
        build = BuildContext(evaluator.backbone.tokenizer, length, args.seed, haystack)
        for benchmark in benchmarks:
            if time.monotonic() - began > 60 * args.minutes:
                break
            try:
                with torch.inference_mode():
                    cells = scores_of(evaluator, benchmark, build, args)
            except Exception as error:  # the other tasks go on; nobody is there to start this again
                traceback.print_exc()
                result["failed"][f"{benchmark.name}@{length}"] = f"{type(error).__name__}: {error}"
                continue
            full = cells.pop(f"{FULL_CACHE}@{NOTHING_EVICTED}")
            result["scores"].setdefault(str(length), {})[benchmark.name] = full
            result["methods"].setdefault(str(length), {})[benchmark.name] = cells
            write_whole(args.out, json.dumps(result, indent=1))
            print(f"{length} {benchmark.name} {100 * full:.1f}  {time.monotonic() - began:.0f} s", flush=True)
    write_whole(args.out, json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
