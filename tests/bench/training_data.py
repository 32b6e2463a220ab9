"""The training data pipeline alone: its speed, its memory on a small and a large corpus, and padding with and without
packing.

    python tests/bench/training_data.py [--megabytes 10,1000] [--tokens 1000000] [--out results.json]

Corpora are generated: paragraphs of made-up words, drawn anew for each document, whose lengths are log-uniform between
500 and 20,000 characters. Each is measured in a process of its own. `copy` is the first opening, `open` the second;
`resume` is the time from a checkpoint's position to the next step. `anonymous` is peak memory of the process but for
pages of mapped files, which the kernel drops when others need them; `before` is the same with nothing read. Padding is
of `--texts`. A table is printed, and results are written after each part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from indexmem.config.schema import ModelConfig
from indexmem.config.text import TextConfig
from indexmem.distill.corpus import open_corpora
from indexmem.distill.data import StepBatches, WindowStream
from indexmem.models.backbone import load_tokenizer

CORPUS_COLUMNS = ("megabytes", "packing", "documents", "copy_s", "open_s", "resume_s", "tokens_per_s")
CORPUS_COLUMNS += ("before_mib", "anonymous_mib", "rss_mib")
PADDING_COLUMNS = ("texts", "batch_size", "packing", "documents_per_batch", "padding", "row_filled")
MIB = 2**20


def write_corpus(path: Path, megabytes: float, seed: int = 0) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlucm", k=rng.randint(2, 9))) for _ in range(5000)]
    paragraphs = [" ".join(rng.choices(words, k=rng.randint(20, 150))) for _ in range(2000)]
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            length = math.exp(rng.uniform(math.log(500), math.log(20_000)))
            written += file.write(
                json.dumps({"text": "\n\n".join(rng.choices(paragraphs, k=1 + int(length / 500)))}) + "\n"
            )


def memory() -> tuple[float, float]:
    """MiB of this process: all, and without pages of files."""
    info = psutil.Process().memory_info()
    return info.rss / MIB, (info.rss - info.shared) / MIB


def timed_steps(
    steps: Iterator[StepBatches], tokens: int
) -> tuple[list[StepBatches], float, list[tuple[float, float]]]:
    """Steps of at least so many tokens, their seconds, and the memory after each."""
    taken, seen, peaks, began = [], 0, [], time.perf_counter()
    for step in steps:
        taken.append(step)
        seen += sum(int(batch.lengths_D.sum()) for batch in step.micro_batches)
        peaks.append(memory())
        if seen >= tokens:
            break
    return taken, time.perf_counter() - began, peaks


def measure_corpus(path: Path, args: argparse.Namespace, packing: bool) -> dict[str, Any]:
    texts, tokenizer, opened = [TextConfig(name=str(path))], load_tokenizer(ModelConfig(id=args.model)), []
    before = memory()[1]
    for _ in range(2):
        began = time.perf_counter()
        documents = open_corpora(texts)
        opened.append(time.perf_counter() - began)
    stream = WindowStream(documents, tokenizer, args.length, seed=0, packing=packing)
    stream_steps = stream.steps(args.batch_size)
    next(stream_steps)  # fills the buffer
    steps, seconds, peaks = timed_steps(stream_steps, args.tokens)
    began = time.perf_counter()
    next(stream.steps(args.batch_size, position=steps[-1].position))
    resumed = time.perf_counter() - began
    tokens = sum(int(batch.lengths_D.sum()) for step in steps for batch in step.micro_batches)
    return {
        "megabytes": path.stat().st_size / 1e6,
        "packing": packing,
        "documents": len(documents),
        "copy_s": opened[0],
        "open_s": opened[1],
        "resume_s": resumed,
        "tokens_per_s": tokens / seconds,
        "before_mib": before,
        "anonymous_mib": max(anonymous for _, anonymous in peaks),
        "rss_mib": max(rss for rss, _ in peaks),
    }


def measure_padding(name: str, args: argparse.Namespace, batch_size: int, packing: bool) -> dict[str, Any]:
    documents = open_corpora(TextConfig.named(name))
    stream = WindowStream(documents, load_tokenizer(ModelConfig(id=args.model)), args.length, seed=0, packing=packing)
    batches = [step.micro_batches[0] for step in islice(stream.steps(batch_size), args.batches)]
    real = sum(int(batch.lengths_D.sum()) for batch in batches)
    padded = sum(len(batch.lengths_D) * int(batch.lengths_D.max()) for batch in batches)
    return {
        "texts": name,
        "batch_size": batch_size,
        "packing": packing,
        "documents_per_batch": sum(len(batch.lengths_D) for batch in batches) / len(batches),
        "padding": 1 - real / padded,
        "row_filled": real / (batch_size * args.length * len(batches)),
    }


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    def cell(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"

    lines = [columns, *([cell(row[name]) for name in columns] for row in rows)]
    return "\n".join("  ".join(f"{text:>19}" for text in line) for line in lines)


def in_new_process(measure: Any, *args: Any) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return dict(pool.submit(measure, *args).result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="10,1000")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="read from each corpus")
    parser.add_argument("--texts", default="essays,king-james")
    parser.add_argument("--batches", type=int, default=100, help="micro-batches over which padding is counted")
    parser.add_argument("--batch-sizes", default="1,4,16")
    parser.add_argument("--batch-size", type=int, default=4, help="of the stream whose speed is measured")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--model", default=ModelConfig().id, help="whose tokenizer")
    parser.add_argument("--out", type=Path, default=Path("training_data.json"))
    args = parser.parse_args()
    results: dict[str, Any] = {"length": args.length, "batch_size": args.batch_size, "corpora": [], "padding": []}

    def keep(part: str, row: dict[str, Any]) -> None:
        results[part].append(row)
        args.out.write_text(json.dumps(results, indent=1))

    for name in args.texts.split(","):
        for batch_size in map(int, args.batch_sizes.split(",")):
            for packing in (False, True):
                keep("padding", measure_padding(name, args, batch_size, packing))
    print(table(results["padding"], PADDING_COLUMNS), end="\n\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INDEXMEM_CACHE"] = f"{folder}/cache"  # of the processes that measure
        for megabytes in map(float, args.megabytes.split(",")):
            path = Path(folder) / f"{megabytes:g}.jsonl"
            write_corpus(path, megabytes)
            for packing in (False, True):
                keep("corpora", in_new_process(measure_corpus, path, args, packing))
            path.unlink()
    print(table(results["corpora"], CORPUS_COLUMNS))


if __name__ == "__main__":
    main()
