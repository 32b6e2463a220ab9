"""Task scores of memory designs at equal bytes: each design, against its bytes spent on more kept tokens.

    python tests/bench/design_tasks.py --load WORK/step-00000165 --out tasks.json --samples 100 --device cuda

`--load` is the checkpoint that tests/bench/memory_designs.py leaves in its --work folder. Every sample is prefilled
once; all designs and ratios decode together. Differences are paired over samples, benchmark by benchmark, with the
interval and the Holm-adjusted p-value of results/comparison.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from design_list import DESIGNS, choose, equal_tokens
from design_scores import more_tokens
from memory_designs import load_designs

from indexmem.benchmarks.base import BuildContext, Sample
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.load import validate
from indexmem.config.modules import module_name
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.names import FULL_CACHE
from indexmem.eviction.methods.registry import make_method
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.results.comparison import holm, paired_difference
from indexmem.texts.documents import load_texts

PROVENANCE = {"git_commit": "bench", "versions": {}, "host": "bench"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--designs", nargs="*", default=[], help="names, or parts of names; default: all that are there"
    )
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.75, 0.9, 0.95])
    parser.add_argument("--benchmarks", nargs="+", default=["niah_single_1", "niah_single_2", "niah_multikey_1"])
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=1, help="samples that decode together")
    parser.add_argument("--length", type=int, default=1152)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--haystack", default="essays-heldout")
    return parser.parse_args()


def spec_of(args: argparse.Namespace) -> Experiment:
    grid = {"benchmarks": args.benchmarks, "length": args.length, "max_new_tokens": args.new}
    return validate({"model": {"id": args.model, "device": args.device}, "grid": grid}, "bench")


def methods_of(
    checkpoint: Path, memories: Mapping[str, MemoryStack], backbone: Backbone
) -> tuple[dict[str, EvictionMethod], dict[str, str]]:
    """Methods by label: the full cache, the indexer with each design, and with as many more tokens; design -> baseline.

    Reads what `checkpoint` holds; a method takes its weights from a folder, so each design gets one for the moment.
    """
    geometry, device = backbone.geometry, str(backbone.device)
    indexer = IndexerStack.load(checkpoint)
    methods = {FULL_CACHE: make_method(MethodConfig(name=FULL_CACHE), MethodContext(geometry, device))}
    baselines = {}
    for design, stack in memories.items():
        extra = equal_tokens(stack.shape, geometry)
        baselines[design] = more_tokens(extra)
        with tempfile.TemporaryDirectory() as folder:
            save_modules({"indexer": indexer, module_name("indexer"): stack}, folder)
            methods[design] = make_method(MethodConfig(name="indexmem"), MethodContext(geometry, device, folder))
            context = MethodContext(geometry, device, folder, extra)
            methods[baselines[design]] = make_method(MethodConfig(name="indexer"), context)
    return methods, baselines


def cells_of(methods: Iterable[str], ratios: Sequence[float], benchmark: str) -> tuple[GridCell, ...]:
    return tuple(
        GridCell(f"{name}@{budget}", MethodConfig(name=name), budget, benchmark, "bench", "")
        for name in methods
        for budget in ([NOTHING_EVICTED] if name == FULL_CACHE else map(Budget.of_ratio, ratios))
    )


def scores_of(
    evaluator: CellEvaluator, samples: Mapping[str, Sequence[Sample]], ratios: Sequence[float], at_once: int
) -> dict[tuple[str, str], dict[str, list[float]]]:
    """(method, budget) -> benchmark -> its samples' scores, in order."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for benchmark, several in samples.items():
        cells = cells_of(evaluator.methods, ratios, benchmark)
        for begin in range(0, len(several), at_once):
            some = several[begin : begin + at_once]
            rows, _ = evaluator.evaluate([Task(sample, cells) for sample in some])
            for row in sorted(rows, key=lambda row: int(row["sample_id"].rpartition("/")[2])):
                assert row["status"] == "ok", f"{row['cell_id']}: {row['error_message']}"
                found.setdefault((row["method"], row["budget"]), {}).setdefault(benchmark, []).append(row["score"])
            print(f"{some[-1].id} done", flush=True)
    return found


def compare(
    scores: Mapping[tuple[str, str], Mapping[str, list[float]]], baselines: Mapping[str, str], ratios: Sequence[float]
) -> list[dict[str, Any]]:
    """One row for each design and budget: its mean score in %, its baseline's, and the paired difference."""
    rows, differences = [], []
    for design, baseline in baselines.items():
        for budget in map(str, map(Budget.of_ratio, ratios)):
            mine, theirs = scores[design, budget], scores[baseline, budget]
            strata = np.repeat(np.arange(len(mine)), [len(values) for values in mine.values()])
            flat = [np.concatenate([np.array(part) for part in side.values()]) for side in (mine, theirs)]
            differences.append(paired_difference(*flat, strata=strata))
            means = [100 * float(np.mean([np.mean(part) for part in side.values()])) for side in (mine, theirs)]
            rows.append({"design": design, "baseline": baseline, "budget": budget, "score": means[0]})
            rows[-1] |= {"baseline_score": means[1]}
    for row, difference, p_value in zip(rows, differences, holm([d.p_value for d in differences])):
        row |= {"difference": 100 * difference.mean, "low": 100 * difference.low, "high": 100 * difference.high}
        row["p_adjusted"] = float(p_value)
    return rows


def main() -> None:
    args = arguments()
    spec = spec_of(args)
    backbone = load_backbone(spec.model)
    memories = load_designs(args.load, list(choose(args.designs)), backbone)
    memories = {name: stack for name, stack in memories.items() if name in DESIGNS}  # trained maps only
    methods, baselines = methods_of(args.load, memories, backbone)
    build = BuildContext(backbone.tokenizer, args.length, args.seed, "\n\n".join(load_texts([args.haystack])), args.new)
    samples = {b.name: list(b.samples(args.samples, build)) for b in make_benchmarks(spec.grid.benchmarks)}
    evaluator = CellEvaluator(spec, backbone, methods, PROVENANCE)
    with torch.inference_mode():
        scores = scores_of(evaluator, samples, args.ratios, args.at_once)
    rows = compare(scores, baselines, args.ratios)
    full = 100 * float(np.mean([np.mean(values) for values in scores[FULL_CACHE, str(NOTHING_EVICTED)].values()]))
    device = torch.cuda.get_device_name() if backbone.device.type == "cuda" else "cpu"
    about = {name: str(value) for name, value in vars(args).items()} | {"device": device, "full": full}
    args.out.write_text(json.dumps({"arguments": about, "rows": rows}, indent=1))
    print(f"full cache {full:.1f}")
    for row in rows:
        print(
            f"{row['budget']:>5} {row['score']:5.1f} against {row['baseline_score']:5.1f}  difference "
            f"{row['difference']:+5.1f} [{row['low']:+.1f}, {row['high']:+.1f}] p {row['p_adjusted']:.3f}  "
            f"{row['design']}"
        )


if __name__ == "__main__":
    main()
