"""Prefill with eviction before attention beside plain prefill: wall time and floating-point operations.

    python tests/bench/sparse_prefill.py [--device cuda --lengths 4096,16384 --ratios 0.5,0.9 --out results.json]

The model is a Llama of the given sizes with seeded random weights, as is the indexer: speed does not depend on them,
except that random scores let the heads of a layer keep different tokens, so more rows than K are projected (`rows`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from indexmem.config.schema import IndexerConfig
from indexmem.engine.prefill import prefill
from indexmem.engine.prefill_flops import prefill_flops
from indexmem.engine.sparse_prefill import sparse_prefill
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.policy import kept_count
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

SINKS, VOCABULARY = 4, 1024
COLUMNS = ("tokens", "ratio", "plain_s", "sparse_s", "score_s", "rows", "plain_gflop", "sparse_gflop", "indexer_gflop")


def random_backbone(args: argparse.Namespace) -> Backbone:
    register_attention()
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=args.hidden,
        intermediate_size=args.mlp,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim,
        max_position_embeddings=max(args.lengths),
    )
    dtype = getattr(torch, args.dtype)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME, dtype=dtype)
    model.eval().requires_grad_(False)
    return Backbone(model, None, Geometry.of(config), "random")  # type: ignore[arg-type]  # no text, no tokenizer


def median_of(repeats: int, run: Callable[[], Any]) -> Any:
    """The run of median `seconds`, after one that is not counted."""
    run()
    done = sorted((run() for _ in range(repeats)), key=lambda result: result.seconds)
    return done[len(done) // 2]


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    backbone = random_backbone(args)
    shape = IndexerShape.of(IndexerConfig(share_every=args.share_every), backbone.geometry)
    method = IndexerScores(IndexerStack(shape, backbone.geometry).to(args.device).requires_grad_(False))
    rows = []
    for tokens in args.lengths:
        ids = torch.randint(VOCABULARY, (tokens,)).tolist()
        plain = median_of(args.repeats, partial(prefill, backbone, ids, {}, SINKS))
        for ratio in args.ratios:
            count = kept_count(tokens, ratio)
            sparse = median_of(args.repeats, partial(sparse_prefill, backbone, ids, method, count, SINKS))
            union = statistics.mean(len(kept.unique()) for kept in sparse.cache.kept_HK)
            flops = {"mlp_width": args.mlp, "projected": round(union)}
            sparse_flops = prefill_flops(backbone.geometry, tokens, count, **flops)
            with_indexer = prefill_flops(backbone.geometry, tokens, count, indexer=shape, **flops)
            rows.append(
                {
                    "tokens": tokens,
                    "ratio": ratio,
                    "plain_s": plain.seconds,
                    "sparse_s": sparse.seconds,
                    "score_s": sparse.score_seconds,
                    "rows": union,
                    "plain_gflop": prefill_flops(backbone.geometry, tokens, tokens, mlp_width=args.mlp) / 1e9,
                    "sparse_gflop": sparse_flops / 1e9,
                    "indexer_gflop": (with_indexer - sparse_flops) / 1e9,
                }
            )
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: Callable[[type], Callable[[str], list]] = lambda kind: lambda text: [kind(x) for x in text.split(",")]  # noqa: E731
    parser.add_argument("--lengths", type=numbers(int), default=[512, 1024, 2048])
    parser.add_argument("--ratios", type=numbers(float), default=[0.5, 0.9])
    for name, default in (("hidden", 256), ("mlp", 512), ("layers", 4), ("heads", 8), ("kv-heads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("head-dim", 32), ("share-every", 1), ("repeats", 3), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    rows = measure(args)
    print("".join(f"{name:>15}" for name in COLUMNS))
    for row in rows:
        print("".join(f"{row[name]:>15.4g}" for name in COLUMNS))
    if args.out is not None:
        settings = {name: str(value) if name == "out" else value for name, value in vars(args).items()}
        device = torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu"
        args.out.write_text(
            json.dumps({"settings": settings, "device": device, "torch": torch.__version__, "rows": rows}, indent=2)
        )


if __name__ == "__main__":
    main()
