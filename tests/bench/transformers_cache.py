"""`generate` over an IndexMemCache beside the engine's single row and transformers' full cache: seconds, side by side.

    python tests/bench/transformers_cache.py --out docs/results/bench/transformers-cache.json
    python tests/bench/transformers_cache.py --model smollm2-135m-instruct --modules smollm2-modules --out FILE
    python tests/bench/transformers_cache.py --show docs/results/bench/transformers-cache.json     # its table again

Each round runs every way once, in an order that turns with the rounds, so that what else the machine does meets all of
them alike. A way's seconds are the least of all rounds, since what else the machine does can only add to them; `ratio`
is by the engine's least, and `ratios` are those of single rounds. On a CPU they are seconds of processor time of this
process, with one thread. Every way reads the same context, is evicted from alike, reads the same question and gives as
many tokens; texts of the engine and of `generate` over our cache are compared. Of a batch, seconds are of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from indexmem import IndexMemCache
from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig, ModelConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.eviction.footprint import target_of
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.assets import modules_folder
from indexmem.models.backbone import Backbone, load_backbone, resolve

SINKS = 4
ENGINE, OURS, FULL = "engine, one row", "IndexMemCache, one row", "full cache, one row"
Timed = tuple[float, float, list[int]]  # seconds of reading and evicting, seconds of answering, the (first) answer


def now(device: torch.device) -> float:
    """Of a GPU the time; of a CPU that of this process alone, which others on the machine stretch less."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def by_engine(
    backbone: Backbone, method: EvictionMethod, ratio: float, context: list[int], question: list[int], new: int
) -> Timed:
    began, tokens = now(backbone.device), len(context)
    done = prefill(backbone, context, {"it": method}, SINKS)
    target = target_of(method, Budget.of_ratio(ratio), tokens, tokens * (1 - ratio))
    row = method.compress(done.context, done.rankings_HL["it"], target)
    read = now(backbone.device)
    (answer,) = decode(backbone, [DecodeRow(row, tokens, question, new, min_new_tokens=new)])
    return read - began, now(backbone.device) - read, answer.token_ids


@torch.no_grad()
def by_generate(
    model: PreTrainedModel, cache: Any, rows: int, context: list[int], question: list[int], new: int
) -> Timed:
    context_RL, all_RT = (torch.tensor([ids] * rows, device=model.device) for ids in (context, context + question))
    mask_RT = torch.ones_like(all_RT)
    began = now(model.device)
    model(context_RL, attention_mask=mask_RT[:, : len(context)], past_key_values=cache, logits_to_keep=1)
    read = now(model.device)
    sequences = model.generate(
        all_RT,
        attention_mask=mask_RT,
        past_key_values=cache,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
    )
    return read - began, now(model.device) - read, sequences[0, all_RT.shape[1] :].tolist()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(args.threads)
    config = ModelConfig(id=args.model)
    backbone = load_backbone(config)
    model = AutoModelForCausalLM.from_pretrained(resolve(config), dtype=torch.float32).eval().to(backbone.device)
    folder = str(modules_folder(args.modules))
    method = make_method(
        MethodConfig(name=args.method), MethodContext(backbone.geometry, str(backbone.device), folder, None, 0.1)
    )
    ours = IndexMemCache(model, args.method, args.ratio, modules=folder)  # modules are loaded once, as the engine's
    generator = torch.Generator().manual_seed(args.seed)
    ids = torch.randint(10, backbone.geometry.vocab_size - 10, (args.length + args.question,), generator=generator)
    context, question = ids[: args.length].tolist(), ids[args.length :].tolist()

    def over_ours(rows: int) -> Timed:
        ours.reset()
        return by_generate(model, ours, rows, context, question, args.new)

    ways: dict[str, Callable[[], Timed]] = {
        ENGINE: lambda: by_engine(backbone, method, args.ratio, context, question, args.new),
        OURS: lambda: over_ours(1),
        FULL: lambda: by_generate(model, DynamicCache(config=model.config), 1, context, question, args.new),
        f"IndexMemCache, {args.batch} rows": lambda: over_ours(args.batch),
    }
    rounds: list[dict[str, Timed]] = []
    for number in range(-1, args.rounds):  # the first one warms up
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        done = {name: ways[name]() for name in order}
        assert done[ENGINE][2] == done[OURS][2], "texts differ"
        if number >= 0:
            rounds.append(done)
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
    return about(args, backbone) | {"ways": {name: summary(name, rounds) for name in ways}}


def summary(name: str, rounds: list[dict[str, Timed]]) -> dict[str, Any]:
    read, answer, both = least(name, rounds)
    _, engine_answer, engine_both = least(ENGINE, rounds)
    return {
        "read_seconds": read,
        "answer_seconds": answer,
        "seconds": both,
        "answer_ratio": answer / engine_answer,
        "ratio": both / engine_both,
        "ratios": [round(sum(done[name][:2]) / sum(done[ENGINE][:2]), 4) for done in rounds],
    }


def least(name: str, rounds: list[dict[str, Timed]]) -> tuple[float, float, float]:
    """Seconds of reading, of answering, and of both."""
    found = [done[name] for done in rounds]
    return min(x[0] for x in found), min(x[1] for x in found), min(x[0] + x[1] for x in found)


def about(args: argparse.Namespace, backbone: Backbone) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    cuda = backbone.device.type == "cuda"
    return {
        "command": " ".join(["python", "tests/bench/transformers_cache.py", *sys.argv[1:]]),
        "commit": commit,
        "device": torch.cuda.get_device_name() if cuda else f"CPU, {args.threads} threads",
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **{name: value for name, value in vars(args).items() if name not in ("out", "show")},
    }


def table(result: dict[str, Any]) -> str:
    """Markdown, as docs/transformers.md has it."""
    lines = [
        "| | reading and evicting, s | answer, s | both, s | both / engine | answer / engine |",
        "|---|---|---|---|---|---|",
    ]
    for name, way in result["ways"].items():
        seconds = " | ".join(f"{way[key]:.3f}" for key in ("read_seconds", "answer_seconds", "seconds"))
        lines.append(f"| {name} | {seconds} | {way['ratio']:.2f} | {way['answer_ratio']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="testbed")
    parser.add_argument("--modules", default="testbed-modules")
    parser.add_argument("--method", default="indexmem")
    parser.add_argument("--ratio", type=float, default=0.9)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--question", type=int, default=16)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    result = json.loads(args.show.read_text()) if args.show else measure(args)
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
