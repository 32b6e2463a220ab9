"""Ten questions about a context in one grid, beside ten grids of one question each: the same rows, side by side.

    python tests/bench/questions.py --out docs/results/bench/questions-testbed.json
    python tests/bench/questions.py --model smollm2-135m-instruct --modules smollm2-modules --length 2048 --out FILE
    python tests/bench/questions.py --show docs/results/bench/questions-testbed.json     # its table again

The benchmark is `niah_questions`. Both ways run on one loaded model, in turn, once a context; the ratio is the median
over contexts. On a CPU, seconds are processor time of this process with one thread; on a GPU they are wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from indexmem.config.load import validate
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.work import Task

RATIOS = [0.5, 0.75, 0.9, 0.95]


def now(device: torch.device) -> float:
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        spec = validate(
            {
                "model": {"id": arguments.model},
                "indexer": {"checkpoint": arguments.modules},
                "grid": {
                    "methods": arguments.methods,
                    "ratios": RATIOS,
                    "benchmarks": [{"name": "niah_questions", "params": {"questions": arguments.questions}}],
                    "length": arguments.length,
                    "samples": arguments.questions * (1 + arguments.contexts),
                    "max_new_tokens": arguments.new,
                },
                "run": {"root": root},
            },
            "bench",
        )
        grid = plan(spec)
    (samples,), (cells,) = grid.samples.values(), grid.cells_of.values()
    provenance = {"git_commit": "", "versions": {}, "host": ""}
    evaluator = CellEvaluator.load(spec, grid.methods, grid.checkpoint, provenance)
    device = evaluator.backbone.device
    rounds = []
    for begin in range(0, len(samples), arguments.questions):
        tasks = [Task(sample, cells) for sample in samples[begin : begin + arguments.questions]]
        start = now(device)
        together = evaluator.evaluate(tasks)[0]
        middle = now(device)
        single = [row for task in tasks for row in evaluator.evaluate([task])[0]]
        end = now(device)
        said = [sorted((r["sample_id"], r["cell_id"], r["prediction"]) for r in rows) for rows in (together, single)]
        rounds.append((middle - start, end - middle, sum(a == b for a, b in zip(*said)), len(said[0])))
        print(f"{rounds[-1]}", flush=True)
    rounds = rounds[1:]  # the first warms up
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, 1 thread of {os.cpu_count()}"
    return {
        "device": name,
        "commit": commit,
        "torch": torch.__version__,
        "model": arguments.model,
        "length": arguments.length,
        "questions": arguments.questions,
        "contexts": arguments.contexts,
        "cells": len(cells),
        "max_new_tokens": arguments.new,
        "together_seconds": round(statistics.median(r[0] for r in rounds), 3),
        "single_seconds": round(statistics.median(r[1] for r in rounds), 3),
        "ratio": round(statistics.median(r[1] / r[0] for r in rounds), 2),
        "ratios": [round(r[1] / r[0], 2) for r in rounds],
        "equal_texts": [sum(r[2] for r in rounds), sum(r[3] for r in rounds)],
    }


def show(found: dict[str, Any]) -> str:
    return "\n".join(
        [
            "| model | device | tokens | cells | together | one by one | ratio | texts equal |",
            "|---|---|---|---|---|---|---|---|",
            "| {model} | {device} | {length} | {cells} | {together_seconds} s | {single_seconds} s | {ratio} |"
            " {0} of {1} |".format(*found["equal_texts"], **found),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="testbed")
    parser.add_argument("--modules", default="testbed-modules")
    parser.add_argument("--methods", nargs="+", default=["full", "indexer"])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--contexts", type=int, default=3)
    parser.add_argument("--new", type=int, default=16, help="tokens of an answer, at most")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    arguments = parser.parse_args()
    found = json.loads(arguments.show.read_text()) if arguments.show else measure(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(show(found))


if __name__ == "__main__":
    main()
