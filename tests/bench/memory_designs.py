"""Memory designs side by side: how much of the eviction error each removes on text that training never saw.

    python tests/bench/memory_designs.py --out results.json [--steps 400 --minutes 9 --designs "slots, joint" ...]

One run trains an indexer and, on the same frozen forward passes, one memory of each design for the indexer's
evictions. On held-out text it then measures, per design, ratio and layer, the share of || o_full - o_kept ||^2 that the
memory removes, beside plain eviction that keeps as many more tokens as the state costs. Slot designs are measured
before their maps are trained, too. Within --minutes, training gets what the evaluation does not need: a short run tells
how long a step takes, and the schedule is as long as fits. Results are written after each held-out sequence.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from design_list import choose, equal_tokens, shape_of
from design_scores import Errors, measure, more_tokens, summarise
from design_training import affordable_steps, seconds_per_step, train, with_schedule

from indexmem.errors import UserError
from indexmem.eviction.checkpoint import load_module
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.models.prompt import encode
from indexmem.texts.documents import load_texts

LAST_STEPS = 40  # whose losses, each on new windows and before the update, say how training ended


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--designs", nargs="*", default=[], help="names, or parts of names; default: all")
    parser.add_argument("--steps", type=int, default=400, help="at most")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for everything after the model is loaded")
    parser.add_argument("--evaluation-minutes", type=float, default=1.5, help="of these, kept for the evaluation")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=1536)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=24, help="held-out sequences, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--texts", nargs="+", default=["essays-train", "king-james"])
    parser.add_argument("--heldout", nargs="+", default=["essays-heldout"])
    parser.add_argument("--peak-lr", type=float, default=1e-3)
    parser.add_argument("--indexer-only", type=int, default=0, help="steps before the memories join")
    parser.add_argument(
        "--work", type=Path, default=Path("memory-designs"), help="checkpoints; a run goes on from here"
    )
    parser.add_argument("--load", type=Path, help="evaluate this checkpoint folder instead of training")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The spec without a schedule."""
    return {
        "model": {"id": args.model, "device": args.device},
        # What evicted when docs/results/memory.md was measured: the paper's scorer, texts read once.
        "indexer": {"pair_term": True, "token_term": 0},
        "target": {"source": "logprobs", "loss": "kl"},
        "distill": {
            "texts": args.texts,
            "length": args.context + args.new,
            "query_tokens": args.new,
            "batch_size": args.batch,
            "joint_from": args.indexer_only,
            "seed": args.seed,
        },
    }


def trained(
    args: argparse.Namespace, names: Sequence[str], backbone: Backbone, deadline: float
) -> tuple[Path, dict[str, Any]]:
    """The checkpoint to evaluate, and how it was trained."""
    settings, steps, per_step = settings_of(args), args.steps, None
    if deadline < float("inf"):
        per_step = seconds_per_step(settings, names, backbone)
        steps = affordable_steps(args.steps, per_step, deadline - time.monotonic())
    print(f"{steps} steps planned ({per_step} s each)", flush=True)
    experiment = with_schedule(settings, steps, args.peak_lr)
    began = time.monotonic()
    folder, rows = train(experiment, names, backbone, args.work, deadline)
    losses = {
        name: [round(row[f"loss_design-{number}"], 4) for row in rows if f"loss_design-{number}" in row]
        for number, name in enumerate(names)
    }
    recent = {
        name: 1 - sum(values[-LAST_STEPS:]) / len(values[-LAST_STEPS:]) for name, values in losses.items() if values
    }
    about = {
        "steps_planned": steps,
        "steps": int(folder.name.removeprefix("step-")),
        "seconds": round(time.monotonic() - began, 1),
        "removed_in_last_steps": recent,
        "losses": losses,
    }
    return folder, about


def load_designs(folder: Path, names: Sequence[str], backbone: Backbone) -> dict[str, MemoryStack]:
    """The trained designs that the folder holds; slot designs also as they are before their maps are trained."""
    shapes = {name: asdict(shape_of(name, backbone.geometry)) for name in names}
    memories: dict[str, MemoryStack] = {}
    for stored in sorted(folder.glob("design-*.safetensors")):
        shape, geometry, state = load_module(folder, stored.stem)
        for name in (name for name, known in shapes.items() if known == shape):
            memories[name] = MemoryStack(MemoryShape(**shape), geometry)
            memories[name].load_state_dict(state)
            memories[name].to(backbone.device).eval()
            if shape["features"] == "slots":
                fresh = MemoryStack(MemoryShape(**shape), geometry).to(backbone.device).eval()
                for target, source in zip(fresh, memories[name], strict=True):
                    target.metric_Hdd.copy_(source.metric_Hdd)
                memories[f"{name}, untrained maps"] = fresh
    return memories


def windows(backbone: Backbone, texts: Sequence[str], length: int) -> Iterator[list[int]]:
    """Disjoint windows of held-out documents."""
    for document in load_texts(texts):
        ids = encode(backbone.tokenizer, document)
        for begin in range(0, len(ids) - length + 1, length):
            yield ids[begin : begin + length]


def describe(
    sequences: Sequence[Errors], memories: Mapping[str, MemoryStack], extra: Mapping[str, int], backbone: Backbone
) -> list[dict[str, Any]]:
    """The summary's rows, with what each design costs."""
    token = 2 * backbone.geometry.kv_heads * backbone.geometry.head_dim
    rows = summarise(sequences)
    for row in rows:
        stack = memories.get(row["design"])
        row["equal_tokens"] = extra[row["design"]]
        row["state_numbers"] = row["equal_tokens"] * token if stack is None else stack[0].state_floats()
        row["parameters_per_layer"] = 0 if stack is None else stack.parameter_count // len(stack)
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        print(
            f"r={row['ratio']:<5} {row['mean_over_layers']:6.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            f" pooled {row['pooled']:6.3f}  worst {row['worst_layer']:7.3f}"
            f"  state {row['state_numbers']:6d}  params {row['parameters_per_layer']:6d}  {row['design']}"
        )


def main() -> None:
    args = arguments()
    try:
        names = list(choose(args.designs))
        backbone = load_backbone(with_schedule(settings_of(args), args.steps, args.peak_lr).model)
        finish = time.monotonic() + 60 * args.minutes
        deadline = finish - 60 * args.evaluation_minutes
        folder, training = (args.load, {}) if args.load else trained(args, names, backbone, deadline)
    except UserError as error:
        raise SystemExit(str(error)) from None
    indexers = IndexerStack.load(folder).to(backbone.device).eval()
    memories = load_designs(folder, names, backbone)
    cost = {name: equal_tokens(stack.shape, backbone.geometry) for name, stack in memories.items()}
    extra = sorted(set(cost.values()))
    cost |= {more_tokens(tokens): tokens for tokens in extra}
    result: dict[str, Any] = {
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "device": torch.cuda.get_device_name() if backbone.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seed": args.seed,
        "training": training,
        "rows": [],
    }
    args.out.write_text(json.dumps(result, indent=1))
    sequences: list[Errors] = []
    for ids in windows(backbone, args.heldout, args.context + args.new):
        if len(sequences) == args.sequences or (sequences and time.monotonic() > finish):
            break
        sequences.append(measure(backbone, indexers, memories, extra, ids, args.context))
        result["rows"] = describe(sequences, memories, cost, backbone)
        args.out.write_text(json.dumps(result, indent=1))
    show(result["rows"])


if __name__ == "__main__":
    main()
