"""One grid three ways: kvpress' pipeline in a loop, our engine cell by cell, our engine with everything shared.

    python tests/bench/grid.py --out grid.json [--samples 2 --length 2048 --ways shared kvpress]

On a GPU, the small model and then the seeded 8B geometry, the latter with `--length 4096` and with `--length 16384`:

    METHODS="snapkv tova keydiff knorm expected_attention streaming_llm lagkv cur leverage adakv"
    python tests/bench/grid.py --out smol.json --device cuda --dtype bfloat16 --length 4096 --methods $METHODS
    python tests/bench/grid.py --out 8b.json --device cuda --dtype bfloat16 --length 4096 --new 32 --methods $METHODS \
        --geometry llama-8b

All three ways run the same model object, methods, ratios, samples and greedy limits; the shared one comes first, and
after each the file holds what is known: a run cut short keeps it. A way that fails is reported, and the others run. The
model is loaded once for each way (kvpress' own evaluation loads it again for every cell, which is not counted here).
`llama-8b` is the geometry of Llama-3.1-8B with seeded random weights and SmolLM2's vocabulary.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from seeded_backbone import seeded_backbone  # beside this file
from transformers import pipeline

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.registry import get_benchmark
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.config.schema import ModelConfig
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import ATTENTION_NAME
from indexmem.models.backbone import Backbone, load_backbone, load_tokenizer
from indexmem.models.prompt import PromptFormat, encode
from indexmem.texts.documents import load_texts

# Ours -> kvpress'. PyramidKV crashes there when a question has several tokens; random has no seed there.
PRESSES = {
    "snapkv": "SnapKVPress",
    "tova": "TOVAPress",
    "keydiff": "KeyDiffPress",
    "knorm": "KnormPress",
    "expected_attention": "ExpectedAttentionPress",
    "streaming_llm": "StreamingLLMPress",
    "lagkv": "LagKVPress",
    "cur": "CURPress",
    "leverage": "LeverageScorePress",
    "adakv": "AdaKVPress",  # around SnapKVPress
}
WAYS = ("shared", "cells", "kvpress")  # the long one last, so that a run cut short still shows ours
PROVENANCE = {"git_commit": "bench", "versions": {}, "host": "bench"}


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[float]]:
    """GiB at most in use meanwhile: of the GPU, or of this process."""
    peak = [0.0]
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak[0] = torch.cuda.max_memory_allocated() / 2**30
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], psutil.Process().memory_info().rss / 2**30)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def press_of(method: str, ratio: float) -> Any:
    import kvpress

    press = getattr(kvpress, PRESSES[method])
    return press(kvpress.SnapKVPress(ratio)) if method == "adakv" else press(ratio)


def by_kvpress(backbone: Backbone, tasks: Sequence[Task]) -> dict[tuple[str, str], str]:
    """Every cell by kvpress' own pipeline."""
    model = backbone.model
    import kvpress  # noqa: F401  # registers the pipeline

    pipe = pipeline("kv-press-text-generation", model=model, tokenizer=backbone.tokenizer)
    texts = {}
    for task in tasks:
        sample = task.sample
        for cell in task.cells:
            press = press_of(cell.method.name, cell.budget.ratio)
            texts[sample.id, cell.id] = pipe(
                sample.context,
                question=sample.question,
                answer_prefix=sample.answer_prefix,
                press=press,
                max_new_tokens=sample.max_new_tokens,
                max_context_length=10**9,
            )["answer"]
            for layer in model.get_decoder().layers:  # a head-wise press leaves its masks on the model
                layer.self_attn.masked_key_indices = None
    return texts


def by_engine(evaluator: CellEvaluator, works: Sequence[Sequence[Task]]) -> tuple[dict[tuple[str, str], str], list]:
    rows = [row for work in works for row in evaluator.evaluate(work)[0]]
    failed = [f"{row['method']}: {row['error_message']}" for row in rows if row["status"] != "ok"]
    assert not failed, failed
    return {(row["sample_id"], row["cell_id"]): row["prediction"] for row in rows}, rows


def make_tasks(backbone: Backbone, arguments: argparse.Namespace) -> list[Task]:
    haystack = "\n\n".join(load_texts(["essays-heldout"]))
    build = BuildContext(backbone.tokenizer, arguments.length, 42, haystack, arguments.new)
    benchmark = get_benchmark("niah_single_2")
    methods = validate({"grid": {"methods": arguments.methods}}, "bench").grid.methods
    cells = tuple(
        GridCell(f"{method.name}@{ratio:g}", method, Budget.of_ratio(ratio), benchmark.name, "bench", "")
        for method in methods
        for ratio in arguments.ratios
    )
    return [Task(sample, cells) for sample in benchmark.samples(arguments.samples + 1, build)]


def stages(rows: list[dict], wall: float) -> dict[str, float]:
    """Where the shared run spent its time, in seconds."""
    prefill = sum({(r["sample_id"]): r["prefill_seconds"] for r in rows}.values())
    scoring = sum({(r["sample_id"], r["method"]): r["score_seconds"] for r in rows}.values())
    decode = sum({(r["decode_seconds"], r["decode_batch"]): r["decode_seconds"] for r in rows}.values())
    return {"prefill": prefill, "scoring": scoring, "decode": decode, "other": wall - prefill - scoring - decode}


@torch.inference_mode()
def floor(backbone: Backbone, tasks: Sequence[Task], rows: list[dict]) -> dict[str, float]:
    """What sharing everything leaves to do: a plain prefill a sample, and decoding at the device's own limits.

    Decoding reads the weights once a step and every row's kept K and V once a token, and multiplies every token of
    question and answer with the weights: the larger of both times, at the measured speeds of a sum and a product.
    """
    model, device = backbone.model, backbone.device
    seconds = 0.0
    for task in tasks:
        prompt = PromptFormat.of(backbone.tokenizer)
        ids = torch.tensor([encode(backbone.tokenizer, prompt.context(task.sample.context))], device=device)
        model.get_decoder()(ids[:, :64], use_cache=False)
        started = clock(device)
        model.get_decoder()(ids, use_cache=False)
        seconds += clock(device) - started
    block = torch.empty(2**28 if device.type == "cuda" else 2**26, dtype=torch.float32, device=device)
    block.sum()
    started = clock(device)
    for _ in range(5):
        block.sum()
    bandwidth = 5 * block.nbytes / (clock(device) - started)
    steps = sum(max(r["new_tokens"] for r in rows if r["sample_id"] == task.sample.id) for task in tasks)
    weights = sum(p.nbytes for p in model.parameters())
    read = sum(r["kv_bytes"] * r["new_tokens"] for r in rows) + steps * weights / len(tasks)
    side = 4096 if device.type == "cuda" else 1024
    square = torch.randn(side, side, dtype=model.dtype, device=device)
    square @ square
    started = clock(device)
    for _ in range(10):
        square @ square
    rate = 20 * side**3 / (clock(device) - started)
    tokens = sum(r["question_tokens"] + r["new_tokens"] for r in rows)
    multiply = 2 * tokens * sum(p.numel() for p in model.parameters()) / rate
    return {
        "prefill": seconds,
        "decode": max(read / bandwidth, multiply),
        "bandwidth_GBps": bandwidth / 1e9,
        "TFLOPs": rate / 1e12,
    }


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def compare(result: dict[str, Any], other: str, texts: dict[str, dict]) -> None:
    """How much faster the shared run was than another, and whether it gave the same texts."""
    shared = texts["shared"]
    differing = [f"{sample}: {cell}" for (sample, cell), text in texts[other].items() if shared[sample, cell] != text]
    same, of = len(texts[other]) - len(differing), len(texts[other])
    speedup = result[other]["seconds_per_sample"] / result["shared"]["seconds_per_sample"]
    result[other] |= {"speedup_of_shared": speedup, "same_texts": same, "texts": of, "differing": differing}
    print(f"{other}: shared is {speedup:.1f} times faster a sample; {same} of {of} texts equal", differing[:8])


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The grid, from the command line."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--loop-samples", type=int, help="samples of the two loops; default: all")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--new", type=int, default=None, help="limit of new tokens; default: the benchmark's")
    parser.add_argument("--methods", nargs="+", default=list(PRESSES)[:8])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.25, 0.5, 0.75, 0.9, 0.95])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--geometry", help="llama-8b: seeded weights instead of a model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-gib", type=float, help="memory of a decode batch; default: the engine's choice")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    return parser.parse_args()


def setup(arguments: argparse.Namespace) -> tuple[Backbone, CellEvaluator, list[Task]]:
    """What runs it: model, methods and tasks, one more of them than samples."""
    if arguments.geometry:
        backbone = seeded_backbone(
            arguments.geometry, getattr(torch, arguments.dtype), arguments.device, load_tokenizer(ModelConfig())
        )
    else:
        backbone = load_backbone(ModelConfig(id=arguments.model, dtype=arguments.dtype, device=arguments.device))
    limit = None if arguments.batch_gib is None else int(arguments.batch_gib * 2**30)
    # kvpress keeps no sinks beside what a method chooses.
    raw = {"grid": {"methods": arguments.methods, "batch_bytes": limit}, "eviction": {"sinks": 0}}
    spec = validate(raw, "bench")
    tasks = make_tasks(backbone, arguments)
    context = MethodContext(backbone.geometry, str(backbone.device))
    methods = {config.label: make_method(config, context) for config in spec.grid.methods}
    evaluator = CellEvaluator(spec, backbone, methods, PROVENANCE)
    return backbone, evaluator, tasks


def main() -> None:
    arguments = arguments_of(argparse.ArgumentParser(description=__doc__.splitlines()[0]))
    backbone, evaluator, tasks = setup(arguments)
    # The last sample warms up (kernels are loaded when first used); the loops that repeat a cell's work need two cells.
    *tasks, spare = tasks
    few = tasks[: arguments.loop_samples or len(tasks)]
    single = [[replace(task, cells=(cell,))] for task in few for cell in task.cells]
    warm = {"shared": [spare] * len(tasks), "cells": [replace(spare, cells=spare.cells[:2])]}
    warm["kvpress"] = warm["cells"]
    result: dict[str, Any] = {
        "arguments": {k: str(v) for k, v in vars(arguments).items()},
        "cells": len(tasks[0].cells),
    }
    on_gpu = backbone.device.type == "cuda"
    result["device"] = torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads"
    texts: dict[str, dict] = {}
    rows: list[dict] = []

    def run(way: str, works: list[Task]) -> None:
        nonlocal rows
        backbone.model.set_attn_implementation("sdpa" if way == "kvpress" else ATTENTION_NAME)
        by_kvpress(backbone, warm[way]) if way == "kvpress" else by_engine(evaluator, [warm[way]])
        with peak_memory(backbone.device) as peak:
            started = clock(backbone.device)
            if way == "kvpress":
                texts[way] = by_kvpress(backbone, works)
            else:
                texts[way], rows = by_engine(evaluator, single if way == "cells" else [works])
            wall = clock(backbone.device) - started
        tokens = sum(len(encode(backbone.tokenizer, text)) for text in texts[way].values())
        result[way] = {
            "seconds": wall,
            "samples": len(works),
            "seconds_per_sample": wall / len(works),
            "prefills": len(works) if way == "shared" else len(single),
            "tokens_per_second": tokens / wall,
            "peak_GiB": peak[0],
        }
        if way == "shared":
            result[way]["stages"] = stages(rows, wall)

    def attempt(name: str, part: Callable[[], None]) -> None:
        """A part that fails is reported and the others run; the file then holds all that is known."""
        try:
            part()
        except Exception as reason:
            result[name] = {"failed": f"{type(reason).__name__}: {reason}"[:500]}
        arguments.out.write_text(json.dumps(result, indent=1))
        print(name, json.dumps(result[name]), flush=True)

    for way in [way for way in WAYS if way in arguments.ways]:
        attempt(way, partial(run, way, tasks if way == "shared" else few))
        if way == "shared" and way in texts:
            attempt("floor", lambda: result.update(floor=floor(backbone, tasks, rows)))
        elif way in texts and "shared" in texts:
            attempt(way, partial(compare, result, way, texts))


if __name__ == "__main__":
    main()
