"""A distillation step against frozen forward passes over the same tokens, and two GPUs against one.

    python tests/bench/distill_step.py --out step.json                                     # time and memory of a step
    python tests/bench/distill_step.py --out once.json --source logprobs                   # of texts read once
    torchrun --nproc-per-node 2 tests/bench/distill_step.py --out ddp.json --loop          # tokens/s of 2 GPUs and of 1
    python tests/bench/distill_step.py --out step.json --device cpu --geometry tiny --lengths 64     # tries it

The backbone has Llama-3.1-8B's sizes and seeded bf16 weights. The forward pass to compare with has no taps and gives
the logits of the last position; a step that reads its text twice is compared with two of them. A step is forward,
backward and optimizer; its peak counts weights and optimizer, too. `--loop` runs the training loop itself, with a
TrainContext over torch.distributed. The file is written after each part; a part that fails is recorded, and the bench
goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from device_clock import seconds
from seeded_backbone import GEOMETRIES, WORDS, seeded_backbone
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.distill.module import DistillModule
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.registry import make_trainees
from indexmem.models.backbone import Backbone
from indexmem.provenance import provenance

WARM_STEPS, MEASURED_STEPS = 3, 6  # of a loop
DOCUMENT_WINDOWS = 300  # a stream's buffer and some more


def measure_step(
    backbone: Backbone, experiment: Experiment, tokens: int, forwards: int, repeats: int
) -> dict[str, Any]:
    """Seconds and peak GiB of the frozen forward pass and of a step on one sequence; `ratio`: to `forwards` passes."""
    device = backbone.device
    ids = torch.randint(0, WORDS, (1, tokens), device=device)
    lengths = torch.tensor([tokens], device=device)
    module = DistillModule(backbone, make_trainees(experiment, backbone.geometry), experiment.target).to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    @torch.no_grad()
    def forward() -> None:
        backbone.model(ids, use_cache=False, logits_to_keep=1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(ids, lengths, StepContext(0, 0)).sum().backward()
        optimizer.step()

    row: dict[str, Any] = {"tokens": tokens}
    for name, work in (("forward", forward), ("step", step)):
        work()  # compiles and chooses configurations, which takes memory of its own
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        row[f"{name}_seconds"] = seconds(work, device, repeats, warm=True)
        if device.type == "cuda":
            row[f"{name}_peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
    row |= {"forwards": forwards, "ratio": row["step_seconds"] / (forwards * row["forward_seconds"])}
    row["tokens_per_second"] = tokens / row["step_seconds"]
    return row


@dataclass(frozen=True)
class GroupContext:
    """A rank of a torch.distributed group, as the loop sees it; with `world` 1 a process on its own."""

    folder: Path
    rank: int
    world: int

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.world == 1:
            return module
        megabytes = sum(p.nbytes for p in module.parameters()) // 2**20 + 1  # one bucket, as on Ray
        return DistributedDataParallel(module, bucket_cap_mb=megabytes, broadcast_buffers=False)

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return wrapped.no_sync()

    def mean(self, values: Tensor) -> Tensor:
        if self.world > 1:
            distributed.all_reduce(values)
        return values / self.world

    def restore(self) -> Path | None:
        return None

    def stop_requested(self) -> bool:
        return False

    def checkpoint(self, folder: Path | None, metrics: dict[str, Any]) -> None:
        pass

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


def measure_loop(backbone: Backbone, settings: dict[str, Any], tokens: int, context: GroupContext) -> float:
    """Tokens per second of the training loop, of all ranks together; one sequence a rank and step."""
    from indexmem.distill.history import History
    from indexmem.distill.loop import distill  # reads texts: needs more than a step does

    text, history = context.folder / "text.txt", History(context.folder / f"history-{context.world}")
    schedule = {"kind": "constant", "warmup": 0, "stable": WARM_STEPS + MEASURED_STEPS}
    training = {"texts": [str(text)], "length": tokens, "workers": context.world, "schedule": schedule}
    experiment = validate({**settings, "distill": {**settings["distill"], **training}}, "bench")
    distill(experiment, context, history, backbone)
    rows = history.read() if context.rank == 0 else []
    return median(row["tokens_per_second"] for row in rows[WARM_STEPS:]) if rows else 0.0


def write_text(path: Path, tokens: int) -> None:
    """Random words, as many as fill a stream's buffer with windows."""
    draw = random.Random(0)
    path.write_text(" ".join(str(draw.randrange(WORDS)) for _ in range(tokens * DOCUMENT_WINDOWS)))


def loop_part(arguments: argparse.Namespace, dtype: torch.dtype) -> None:
    """Two parts: rank 0 alone while the others wait, then all."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    backbone = seeded_backbone(arguments.geometry, dtype, device)
    folder = [tempfile.mkdtemp(prefix="distill-step-") if rank == 0 else ""]
    distributed.broadcast_object_list(folder)
    if rank == 0:
        write_text(Path(folder[0]) / "text.txt", arguments.lengths[0])
    distributed.barrier()
    result: dict[str, Any] = {"device": arguments.device, "tokens": arguments.lengths[0]}
    settings = spec(arguments.scopes[0], arguments.products[0], arguments.source)
    for ranks in (1, world):
        if rank < ranks:
            context = GroupContext(Path(folder[0]), rank, ranks)
            try:
                result[str(ranks)] = measure_loop(backbone, settings, arguments.lengths[0], context)
            except Exception as error:  # of all ranks or of none: what was measured before is still worth having
                result[f"{ranks}_error"] = f"{type(error).__name__}: {error}"[:500]
        distributed.barrier()
        if rank == 0:
            if ranks > 1 and "1" in result and str(ranks) in result:
                result["scaling"] = result[str(ranks)] / result["1"]
            arguments.out.write_text(json.dumps(result, indent=1))
            print(json.dumps(result), flush=True)
    distributed.destroy_process_group()


def spec(scope: str, products: str, source: str) -> dict[str, Any]:
    target = {"source": source, "loss": "kl" if source == "logits" else "bce"}  # logits are no probabilities
    return {"indexer": {"scope": scope}, "distill": {"score_products": products}, "target": target}


def line(row: dict[str, Any]) -> str:
    """One row of the printed table."""
    names = ("forward_seconds", "step_seconds", "ratio", "forward_peak_GiB", "step_peak_GiB")
    figures = "".join(f"{row.get(name, float('nan')):11.3f}" for name in names)
    return f"{row['tokens']:>8} {row['scope']:<8}{row['products']:<9}{figures}  {row.get('error', '')}"


def step_part(arguments: argparse.Namespace, dtype: torch.dtype) -> None:
    device = torch.device(arguments.device)
    backbone = seeded_backbone(arguments.geometry, dtype, device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    shared = {"geometry": arguments.geometry, "matmul": arguments.matmul, "source": arguments.source}
    commit = provenance()["git_commit"]
    result: dict[str, Any] = {"device": name, "commit": commit, "torch": torch.__version__, **shared, "rows": []}
    forwards = arguments.compare_forwards or (2 if arguments.source == "reconstruction" else 1)
    columns = ("forward s", "step s", f"/{forwards} forw.", "GiB", "step GiB")
    print(f"{arguments.source:<26}" + "".join(f"{column:>11}" for column in columns))
    for tokens, scope, products in product(arguments.lengths, arguments.scopes, arguments.products):
        row: dict[str, Any] = {"tokens": tokens, "scope": scope, "products": products}
        try:
            experiment = validate(spec(scope, products, arguments.source), "bench")
            row |= measure_step(backbone, experiment, tokens, forwards, arguments.repeats)
        except Exception as error:  # out of memory, most likely: other lengths are still worth having
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        if device.type == "cuda":
            torch.cuda.empty_cache()
        result["rows"].append(row)
        print(line(row), flush=True)
        arguments.out.write_text(json.dumps(result, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="llama-8b")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 32768, 131072], help="--loop takes the first")
    parser.add_argument("--scopes", nargs="+", default=["layer", "kv_head"])
    parser.add_argument("--products", nargs="+", default=["float16", "float32"])
    parser.add_argument("--source", choices=["reconstruction", "logprobs", "logits"], default="reconstruction")
    parser.add_argument(
        "--compare-forwards", type=int, help="frozen passes to compare with; default: as texts are read"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--matmul", choices=["highest", "high"], default="highest", help="high: fp32 products by TF32")
    parser.add_argument("--loop", action="store_true", help="under torchrun: the training loop on one rank and on all")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision(arguments.matmul)
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    (loop_part if arguments.loop else step_part)(arguments, dtype)


if __name__ == "__main__":
    main()
