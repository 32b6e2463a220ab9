"""The shared way of grid.py by several processes on one device, as actors with a share of a GPU each run it.

    python tests/bench/grid_processes.py --processes 4 --out four.json --device cuda --dtype bfloat16 --length 4096 \
        --samples 32 --methods snapkv tova keydiff knorm expected_attention streaming_llm lagkv cur leverage adakv

A small model leaves a GPU idle while the host prepares the next kernels, and one process has one host thread; several
of them fill the gaps (`grid.gpus_per_actor=0.25`). Each loads the model and warms up; the clock runs from then until
the last one is done. All other arguments are those of grid.py.
"""

from __future__ import annotations

import argparse
import json
import time
from multiprocessing import get_context
from queue import SimpleQueue
from threading import Barrier
from typing import Any

from grid import arguments_of, by_engine, setup  # beside this file

START_SECONDS = 600  # at most, for all to load and warm up


def evaluate(arguments: argparse.Namespace, number: int, ready: Barrier, done: SimpleQueue[Any]) -> None:
    """One process: its share of the samples."""
    _, evaluator, (*tasks, spare) = setup(arguments)
    share = tasks[number :: arguments.processes]
    by_engine(evaluator, [[spare] * len(share)])
    ready.wait(START_SECONDS)
    texts, _ = by_engine(evaluator, [share])
    done.put((time.time(), len(texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    arguments = arguments_of(parser)
    context = get_context("spawn")
    ready, done = context.Barrier(arguments.processes + 1), context.SimpleQueue()
    workers = [
        context.Process(target=evaluate, args=(arguments, number, ready, done), daemon=True)
        for number in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    ready.wait(START_SECONDS)
    started = time.time()
    ended = [done.get() for _ in workers]
    seconds = max(when for when, _ in ended) - started
    result = {
        "arguments": {key: str(value) for key, value in vars(arguments).items()},
        "seconds": seconds,
        "seconds_per_sample": seconds / arguments.samples,
        "rows": sum(rows for _, rows in ended),
    }
    arguments.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
