"""Prefill with eviction before attention beside plain prefill: time, peak memory and floating-point operations.

    python tests/bench/sparse_prefill.py [--out results.json]                 # a small model on this CPU
    python tests/bench/sparse_prefill.py --preset llama-3.1-8b --out results.json    # on a GPU, 8K to 32K tokens

The model has the given sizes and seeded random weights, as has the indexer: speed does not depend on them, except that
random scores let the heads of a layer keep different tokens, so that more than K rows are projected (`rows`), and keep
early ones more often, which more queries see (`pairs`). FLOPs count the rows and pairs of the run. Plain prefill is the
model's own forward pass without a cache. Each figure is the median of `--repeats` runs, after one that is not counted.
Results are written after each length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import torch
from prefill_flops import prefill_flops
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from indexmem.config.modules import IndexerConfig
from indexmem.engine.sparse_prefill import sparse_prefill
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.selection import tokens_left
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

SINKS, VOCABULARY = 4, 1024
NOTE = "random weights: times do not depend on values, except through which tokens are kept (rows, pairs)"
COLUMNS = ("tokens", "ratio", "seconds", "score_s", "rest_s", "speedup", "peak_gib", "tflop", "indexer_tflop", "rows")

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "small": {
            "lengths": [512, 1024, 2048],
            "sizes": {"hidden": 256, "mlp": 512, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 32},
            "device": "cpu",
            "dtype": "float32",
        },
        "llama-3.1-8b": {
            "lengths": [8192, 16384, 32768],
            "sizes": {"hidden": 4096, "mlp": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128},
            "device": "cuda",
            "dtype": "bfloat16",
        },
    }
)


@dataclass(frozen=True)
class Timing:
    """Medians over the repeats."""

    seconds: float
    score_seconds: float
    peak_gib: float


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
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=ATTENTION_NAME, dtype=getattr(torch, args.dtype)
        )
    model.eval().requires_grad_(False)
    return Backbone(model, None, Geometry.of(config), "random")  # type: ignore[arg-type]  # no text, no tokenizer


@torch.inference_mode()
def plain_prefill(backbone: Backbone, ids: list[int]) -> None:
    backbone.model.get_decoder()(torch.tensor([ids], device=backbone.device), use_cache=False)


def timed(repeats: int, device: torch.device, run: Callable[[], Any]) -> tuple[Timing, Any]:
    """Of `repeats` runs, after one that compiles and warms up; and the last one's result."""
    run()
    seconds, scores, result = [], [], None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(repeats):
        result = None  # the last one's cache must not count as this one's memory
        began = _clock(device)
        result = run()
        seconds.append(_clock(device) - began)
        scores.append(getattr(result, "score_seconds", 0.0))
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    return Timing(statistics.median(seconds), statistics.median(scores), peak), result


def measure(
    args: argparse.Namespace, backbone: Backbone, shape: IndexerShape, method: IndexerScores, tokens: int
) -> list[dict[str, float]]:
    """Plain prefill of one length (ratio 0), and prefill with eviction at each ratio."""
    ids = torch.randint(VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(args.seed)).tolist()
    plain, _ = timed(args.repeats, backbone.device, lambda: plain_prefill(backbone, ids))
    plain_flops = prefill_flops(backbone.geometry, tokens, tokens, mlp_width=args.mlp)
    rows: list[dict[str, float]] = [
        _row(tokens, 0.0, plain, plain, plain_flops, 0, {"rows": tokens, "pairs": tokens * (tokens + 1) // 2})
    ]
    for ratio in args.ratios:
        count = tokens_left(tokens, ratio)
        sparse, counts = evicting(args, backbone, method, ids, count)
        flops = {"mlp_width": args.mlp, "projected": counts["rows"], "pairs": counts["pairs"]}
        without = prefill_flops(backbone.geometry, tokens, count, **flops)
        scoring = prefill_flops(backbone.geometry, tokens, count, indexer=shape, **flops) - without
        rows.append(_row(tokens, ratio, sparse, plain, without, scoring, counts))
    return rows


def evicting(
    args: argparse.Namespace, backbone: Backbone, method: IndexerScores, ids: list[int], count: int
) -> tuple[Timing, dict[str, int]]:
    """Times of prefill that keeps `count` tokens, and the rows and pairs of a layer (means)."""
    timing, last = timed(args.repeats, backbone.device, lambda: sparse_prefill(backbone, ids, method, count, SINKS))
    kept = last.cache.kept_HK
    counts = {"rows": _mean(len(x.unique()) for x in kept), "pairs": _mean(_pairs(x, len(ids)) for x in kept)}
    return timing, counts


def show(rows: Sequence[Mapping[str, float]]) -> None:
    for row in rows:
        print("".join(f"{row[name]:>14.4g}" for name in COLUMNS), flush=True)


def arguments() -> argparse.Namespace:
    numbers: Callable[[type], Callable[[str], list]] = lambda kind: lambda text: [kind(x) for x in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--lengths", type=numbers(int))
    parser.add_argument("--ratios", type=numbers(float), default=[0.5, 0.75, 0.9])
    for name in ("hidden", "mlp", "layers", "heads", "kv-heads", "head-dim"):
        parser.add_argument(f"--{name}", type=int)
    for name, default in (("share-every", 1), ("repeats", 3), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--scope", choices=("kv_head", "layer"), default="kv_head", help="of the indexer's scores")
    parser.add_argument("--indexer-dtype", default="float32")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    preset = PRESETS[args.preset]
    for name, value in {**preset["sizes"], **{k: v for k, v in preset.items() if k != "sizes"}}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main() -> None:
    args = arguments()
    backbone = random_backbone(args)
    config = IndexerConfig(share_every=args.share_every, scope=args.scope)
    shape = IndexerShape.of(config, backbone.geometry)
    indexers = IndexerStack(shape, backbone.geometry).to(args.device, getattr(torch, args.indexer_dtype))
    method = IndexerScores(indexers.requires_grad_(False))
    result = {
        "note": NOTE,
        "settings": {name: str(value) if name == "out" else value for name, value in vars(args).items()},
        "indexer": asdict(shape),
        "device": torch.cuda.get_device_name() if backbone.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "rows": [],
    }
    print("".join(f"{name:>14}" for name in COLUMNS))
    for tokens in args.lengths:
        rows = measure(args, backbone, shape, method, tokens)
        show(rows)
        result["rows"] += rows
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1))


def _row(
    tokens: int, ratio: float, run: Timing, plain: Timing, flops: int, scoring: int, counts: Mapping[str, int]
) -> dict[str, float]:
    return {
        "tokens": tokens,
        "ratio": ratio,
        "seconds": run.seconds,
        "score_s": run.score_seconds,
        "rest_s": run.seconds - run.score_seconds,
        "speedup": plain.seconds / run.seconds,
        "peak_gib": run.peak_gib,
        "tflop": (flops + scoring) / 1e12,
        "indexer_tflop": scoring / 1e12,
        **counts,
    }


def _mean(values: Any) -> int:
    return round(statistics.mean(values))


def _pairs(kept_HK: Tensor, tokens: int) -> float:
    """Queries that see a kept token, summed over a head's kept tokens; mean over heads."""
    return float((tokens - kept_HK).sum(1).double().mean())


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
