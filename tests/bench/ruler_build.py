"""How long making RULER's samples takes: 13 tasks, SmolLM2's tokenizer, no cache.

    python tests/bench/ruler_build.py [SAMPLES] [LENGTH]

Prints milliseconds of process time a sample and task, their total, and seconds of process and wall time. Process time
is what counts on a busy machine; a build of this size uses several processes, this script one.
"""

from __future__ import annotations

import sys
import time

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.schema import BenchmarkConfig, GridConfig, ModelConfig
from indexmem.models.backbone import load_tokenizer
from indexmem.texts.documents import load_texts


def main(samples: int = 500, length: int = 4096) -> None:
    grid = GridConfig()
    haystack = "\n\n".join(load_texts([grid.haystack]))
    build = BuildContext(load_tokenizer(ModelConfig()), length, grid.seed, haystack)
    tasks = make_benchmarks([BenchmarkConfig(name="ruler")])
    wall, process = time.perf_counter(), time.process_time()
    for task in tasks:
        began = time.process_time()
        made = sum(1 for _ in task.samples(samples, build))
        print(f"{task.name:18} {1000 * (time.process_time() - began) / made:7.1f} ms a sample", flush=True)
    process, wall = time.process_time() - process, time.perf_counter() - wall
    print(f"{len(tasks)} x {samples} samples of {length} tokens: process time {process:.1f} s, wall time {wall:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
