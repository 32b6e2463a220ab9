"""Memory designs side by side: how much of the eviction error each removes, and what that does to task scores.

    python tests/bench/memory_designs.py --out results.json [--steps 400 --device cuda]

One run trains an indexer and, on the same frozen forward passes, one memory of each design for the indexer's
evictions. On held-out text it then measures, per design, ratio and layer, the share of || o_full - o_kept ||^2 that the
memory removes, beside plain eviction that keeps as many more tokens as the state costs. Slot
designs are measured before their maps are trained, too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.trainees.memory import MemoryTrainee
from indexmem.eviction.checkpoint import load_module
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.attention import merge, partial_attention
from indexmem.eviction.memory.base import Evicted, MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.policy import keep, kept_count, rank
from indexmem.models.attention import LayerTap, output_weight, tapping
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.models.prompt import encode
from indexmem.models.texts import load_texts

RATIOS = (0.5, 0.75, 0.9)
SINKS = 4

# Equal bytes: on SmolLM2 (3 KV heads of 64) 64 tokens of K and V are 24,576 numbers a layer.
DESIGNS: dict[str, dict] = {
    "paper: linear, add, kv_flat, pre-RoPE, d/8": {
        "features": "linear",
        "fusion": "add",
        "input": "kv_flat",
        "rotary": "pre",
    },
    "linear, add, kv_flat, 42": {"features": "linear", "fusion": "add", "input": "kv_flat", "rotary": "pre", "dim": 42},
    "linear, add, model, 42": {"features": "linear", "fusion": "add", "input": "model", "rotary": "pre", "dim": 42},
    "linear, add, head, 126": {"features": "linear", "fusion": "add", "input": "head", "rotary": "pre", "dim": 126},
    "linear, add, kv_flat, model space, 42": {
        "features": "linear",
        "fusion": "add",
        "input": "kv_flat",
        "rotary": "pre",
        "value": "model",
        "dim": 42,
    },
    "linear, mix, kv_flat, 42": {"features": "linear", "fusion": "mix", "input": "kv_flat", "rotary": "pre", "dim": 42},
    "positive, joint, pre-RoPE, 126": {"features": "positive", "rotary": "pre", "dim": 126},
    "positive, joint, post-RoPE, 126": {"features": "positive", "rotary": "post", "dim": 126},
    "positive, mix, post-RoPE, 126": {"features": "positive", "fusion": "mix", "rotary": "post", "dim": 126},
    "slots, joint, pre-RoPE, 63": {"features": "slots", "rotary": "pre", "dim": 63},
    "slots, joint, post-RoPE, 63": {"features": "slots", "rotary": "post", "dim": 63},
    "slots, joint, post-RoPE, 31": {"features": "slots", "rotary": "post", "dim": 31},
    "slots, joint, post-RoPE, 15": {"features": "slots", "rotary": "post", "dim": 15},
}
EQUAL_BYTES_TOKENS = 64


class _Named(MemoryTrainee):
    """A memory trainee that is stored under its design's number."""

    def __init__(self, experiment: Experiment, geometry, number: int, indexers: IndexerStack, shared: dict) -> None:
        super().__init__(experiment, geometry, "indexer", indexers)
        self.name = f"design-{number}"
        self.shared = shared

    def scene(self, tap: LayerTap, ratio: float):
        """All designs remember the same evictions: compute them once a layer."""
        key = (tap.layer, ratio, tap.key_BHLd.shape, float(tap.hidden_BLD.flatten()[0]))
        if self.shared.get("key") != key:
            self.shared.update(key=key, scene=super().scene(tap, ratio))
        return self.shared["scene"]


def train(experiment: Experiment, designs: dict[str, dict], backbone: Backbone, folder: Path) -> Path:
    """Train the indexer and every design in one run; the folder of the last checkpoint."""
    from indexmem.distill import loop
    from indexmem.distill.trainees.indexer import IndexerTrainee

    def trainees(spec: Experiment, geometry):
        indexer = IndexerTrainee(spec, geometry)
        raw = spec.model_dump(mode="json")
        shared: dict = {}
        made = [
            _Named(validate(raw | {"memory": design}, name), geometry, number, indexer.trained, shared)
            for number, (name, design) in enumerate(designs.items())
        ]
        return [indexer, *made]

    loop.make_trainees = trainees
    distill(experiment, LocalContext(folder), History(folder / "history"), backbone)
    return sorted(folder.glob("step-*"))[-1]


@torch.inference_mode()
def reductions(
    backbone: Backbone,
    indexers: IndexerStack,
    memories: dict[str, MemoryStack],
    texts: list[str],
    context: int,
    new: int,
) -> dict:
    """name -> ratio -> [sequences, layers, 2]: squared error left, and without memory."""
    layers = backbone.geometry.layers
    scorer = IndexerScores(indexers)
    errors: dict = defaultdict(lambda: defaultdict(list))
    for text in texts:
        ids = torch.tensor([encode(backbone.tokenizer, text)[: context + new]], device=backbone.device)
        rows: dict = defaultdict(lambda: defaultdict(lambda: np.zeros((layers, 2))))

        def visit(tap: LayerTap, rows=rows) -> None:
            seen = tap.prefix(context)
            ranking = rank(scorer.score(seen)[0], SINKS)
            query = tap.query_BQLd[:, :, context:]
            causal = torch.ones(new, new, dtype=torch.bool, device=query.device).tril()
            own = partial_attention(
                query, tap.key_BHLd[:, :, context:], tap.value_BHLd[:, :, context:], tap.scaling, causal
            )

            def over(positions_HK):
                index = positions_HK[None, ..., None].expand(1, -1, -1, tap.key_BHLd.shape[-1])
                return partial_attention(
                    query, seen.key_BHLd.gather(2, index), seen.value_BHLd.gather(2, index), tap.scaling
                )

            project = output_weight(tap.module).float()
            for ratio in RATIOS:
                count = kept_count(context, ratio)
                kept = over(keep(ranking, count))
                lost = over(ranking[:, count:].long())
                full, plain = merge(kept, own, lost)[0], merge(kept, own)
                missing = (full - plain[0]).square().sum().item()
                leaves = torch.ones_like(ranking, dtype=torch.bool).scatter_(1, keep(ranking, count), False)
                more = merge(over(keep(ranking, min(context, count + EQUAL_BYTES_TOKENS))), own)[0]
                rows[f"{EQUAL_BYTES_TOKENS} more tokens, no memory"][ratio][tap.layer] = (
                    (full - more).square().sum().item(),
                    missing,
                )
                for name, stack in memories.items():
                    memory = stack[tap.layer]
                    before = memory.shape.rotary == "pre"
                    evicted = Evicted(
                        seen.key_pre_BHLd if before else seen.key_BHLd,
                        seen.value_BHLd,
                        leaves[None],
                        output_weight(tap.module) if memory.shape.value == "model" else None,
                    )
                    state = memory.write(None, evicted)
                    read = memory.read(state, (tap.query_pre_BQLd[:, :, context:] if before else query), *plain)
                    left = full - read.output_BQnd
                    total = missing
                    if read.residual_BnD is not None:
                        flat = lambda x: x.transpose(1, 2).flatten(2) @ project.T  # noqa: E731
                        left, total = flat(left) - read.residual_BnD, flat(full - plain[0]).square().sum().item()
                    rows[name][ratio][tap.layer] = (left.square().sum().item(), total)

        with tapping(backbone.model, visit) as kwargs:
            backbone.model.get_decoder()(ids, use_cache=False, **kwargs)
        for name, by_ratio in rows.items():
            for ratio, values in by_ratio.items():
                errors[name][ratio].append(values)
    return errors


def summarise(errors: dict) -> list[dict]:
    """Share removed: mean over layers with a bootstrap interval over sequences, and pooled over layers."""
    rng = np.random.default_rng(0)
    rows = []
    for name, by_ratio in errors.items():
        for ratio, values in by_ratio.items():
            stacked = np.stack(values)  # [sequences, layers, 2]

            def removed(sample):
                left, total = sample.sum(0).T
                return 1 - left / total, 1 - left.sum() / total.sum()

            by_layer, pooled = removed(stacked)
            draws = [removed(stacked[rng.integers(len(stacked), size=len(stacked))]) for _ in range(500)]
            low, high = np.quantile([d[0].mean() for d in draws], (0.025, 0.975))
            rows.append(
                {
                    "design": name,
                    "ratio": ratio,
                    "mean_over_layers": by_layer.mean(),
                    "low": low,
                    "high": high,
                    "pooled": pooled,
                    "worst_layer": by_layer.min(),
                    "sequences": len(stacked),
                    "by_layer": [round(float(x), 4) for x in by_layer],
                }
            )
    return rows


def load_designs(folder: Path, designs: dict[str, dict], backbone: Backbone) -> dict[str, MemoryStack]:
    """The trained designs that the folder holds; slot designs also as they are before their maps are trained."""
    shapes = {
        name: MemoryShape.of(validate({"memory": design}, name).memory, backbone.geometry).to_dict()
        for name, design in designs.items()
    }
    memories: dict[str, MemoryStack] = {}
    for stored in sorted(folder.glob("design-*.safetensors")):
        shape, geometry, state = load_module(folder, stored.stem)
        name = next(name for name, known in shapes.items() if known == shape)
        memories[name] = MemoryStack(MemoryShape(**shape), geometry)
        memories[name].load_state_dict(state)
        memories[name].to(backbone.device).eval()
        if shape["features"] == "slots":
            fresh = MemoryStack(MemoryShape(**shape), geometry).to(backbone.device).eval()
            for target, source in zip(fresh, memories[name], strict=True):
                target.metric_Hdd.copy_(source.metric_Hdd)
            memories[f"{name}, untrained maps"] = fresh
    return memories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=1536)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--peak-lr", type=float, default=1e-3)
    parser.add_argument("--indexer-only", type=int, default=0, help="steps before the memories join")
    parser.add_argument("--work", type=Path, default=Path("memory-designs"))
    parser.add_argument("--load", type=Path, help="evaluate this checkpoint folder instead of training")
    parser.add_argument("--designs", nargs="*", help="substrings of design names; default: all")
    arguments = parser.parse_args()
    chosen = {
        name: design
        for name, design in DESIGNS.items()
        if not arguments.designs or any(part in name for part in arguments.designs)
    }
    warmup, decay = arguments.steps // 10, arguments.steps * 2 // 5
    experiment = validate(
        {
            "model": {"id": arguments.model, "device": arguments.device},
            "distill": {
                "texts": ["essays-train", "king-james"],
                "length": arguments.context + arguments.new,
                "query_tokens": arguments.new,
                "batch_size": arguments.batch,
                "joint_from": arguments.indexer_only,
                "schedule": {
                    "warmup": warmup,
                    "stable": arguments.steps - warmup - decay,
                    "decay": decay,
                    "peak_lr": arguments.peak_lr,
                    "final_lr": arguments.peak_lr / 100,
                },
                "checkpoint_every": 100,
            },
        },
        "bench",
    )
    backbone = load_backbone(experiment.model)
    started = time.time()
    folder = arguments.load or train(experiment, chosen, backbone, arguments.work)
    seconds = time.time() - started
    indexers = IndexerStack.load(folder).to(backbone.device).eval()
    memories = load_designs(folder, chosen, backbone)
    texts = []
    need = arguments.context + arguments.new
    for document in load_texts(["essays-heldout"]):
        ids = encode(backbone.tokenizer, document)
        for begin in range(0, len(ids) - need, need):
            texts.append(backbone.tokenizer.decode(ids[begin : begin + need + 8]))
    texts = [t for t in texts if len(encode(backbone.tokenizer, t)) >= need][: arguments.sequences]
    rows = summarise(reductions(backbone, indexers, memories, texts, arguments.context, arguments.new))
    for row in rows:
        stack = memories.get(row["design"])
        row["state_numbers"] = stack[0].state_floats() if stack else EQUAL_BYTES_TOKENS * 2 * 3 * 64
        row["parameters_per_layer"] = stack.parameter_count // len(stack) if stack else 0
    rows.sort(key=lambda row: (row["ratio"], -row["mean_over_layers"]))
    for row in rows:
        interval = f"[{row['low']:.3f}, {row['high']:.3f}]"
        sizes = f"state {row['state_numbers']:6d}  params {row['parameters_per_layer']:6d}"
        print(
            f"r={row['ratio']:<5} {row['mean_over_layers']:6.3f} {interval} pooled {row['pooled']:6.3f}"
            f"  worst {row['worst_layer']:7.3f}  {sizes}  {row['design']}"
        )
    result = {
        "arguments": {k: str(v) for k, v in vars(arguments).items()},
        "device": torch.cuda.get_device_name() if backbone.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "train_seconds": round(seconds, 1),
        "seconds_per_step": round(seconds / arguments.steps, 3),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
