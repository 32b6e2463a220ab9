"""Attention of one decode step of a grid, by the engine's kernel and by every route of torch, against the memory floor.

    python tests/bench/decode_attention.py --out attention.json [--device cuda] [--profile-step]

A batch has 50 rows, ten for each of five shares kept of the context, and a few tokens decoded since. The kernel takes
it as it lies in the engine's storage, with spans of several sizes; torch's routes take what a bucket of the engine is:
lanes of one length, with a mask. The floor of each is reading its valid K and V once at the measured bandwidth of a
copy. A route that fails is reported with its reason; JSON is written after each row.
`--profile-step` then profiles one decode step of the engine on the seeded 8B geometry, by kernel.
Shapes: R rows, H KV heads, g query heads per KV head, N = R H lanes, T columns of a bucket, d head_dim.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from device_clock import copied_bytes_per_second  # beside this file
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

KEPT = (0.75, 0.5, 0.25, 0.1, 0.05)
OPENED, ROOM = 30, 160  # columns behind the kept ones: in use, and in all
SPANS = (128, 256, 512, 1024)
PROFILED_ROWS = 20  # kernels of the profile


@dataclass(frozen=True)
class Shape:
    name: str
    rows: int
    heads: int
    group: int
    tokens: int
    dim: int


SHAPES = (
    Shape("SmolLM2, 4K", 50, 3, 3, 4096, 64),
    Shape("8B, 4K", 50, 8, 4, 4096, 128),
    Shape("8B, 16K", 50, 8, 4, 16384, 128),
    Shape("8B, 16K, one row", 1, 8, 4, 16384, 128),
)
SMALL = (Shape("SmolLM2, 1K", 10, 3, 3, 1024, 64),)


def by_backend(backend: SDPBackend, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Two matrix products and a softmax in fp32; logits rounded to the inputs' type."""
    logits = (query @ key.transpose(-1, -2)).float() * key.shape[-1] ** -0.5 + mask
    return logits.softmax(-1).to(value.dtype) @ value


ROUTES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "torch, default": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    "torch, efficient": partial(by_backend, SDPBackend.EFFICIENT_ATTENTION),
    "torch, cudnn": partial(by_backend, SDPBackend.CUDNN_ATTENTION),
    "torch, math": partial(by_backend, SDPBackend.MATH),
    "two products": by_products,
}


def lengths_of(shape: Shape) -> list[int]:
    """Kept tokens of each row."""
    return [int(KEPT[row * len(KEPT) // shape.rows] * shape.tokens) for row in range(shape.rows)]


def by_kernel(shape: Shape, device: str, dtype: torch.dtype, span: int) -> tuple[Callable[[], Tensor], Tensor, int]:
    """The kernel on all lanes in one storage: a launch, what it should give for the first lane, bytes read."""
    from indexmem.kernels.decode_attention import decode_attention  # needs Triton

    kept_R = torch.tensor(lengths_of(shape), device=device)
    kept_N = kept_R.repeat_interleave(shape.heads)
    begin_N = (kept_N + ROOM).cumsum(0) - kept_N - ROOM
    keys_Cd, values_Cd = torch.randn(2, int((kept_N + ROOM).sum()), shape.dim, device=device, dtype=dtype)
    query_RQnd = torch.randn(shape.rows, shape.heads * shape.group, 1, shape.dim, device=device, dtype=dtype)
    opened_1 = torch.tensor([OPENED], device=device)
    longest = int(kept_N.max()) + ROOM
    tables = begin_N, kept_N, torch.zeros_like(kept_R), opened_1
    launch = partial(
        decode_attention, query_RQnd, keys_Cd, values_Cd, *tables, shape.dim**-0.5, longest=longest, span=span
    )
    tokens = int(kept_N[0]) + OPENED
    key, value = (part[:tokens].double() for part in (keys_Cd, values_Cd))
    group_gd = query_RQnd[0, : shape.group, 0].double()
    exact_gd = (group_gd @ key.T * shape.dim**-0.5).softmax(-1) @ value
    bytes_read = 2 * int((kept_N + OPENED).sum()) * shape.dim * keys_Cd.element_size()
    return lambda: launch()[0][0, : shape.group, 0], exact_gd, bytes_read


def by_torch(
    route: Callable[..., Tensor], shape: Shape, device: str, dtype: torch.dtype
) -> tuple[Callable[[], Tensor], Tensor, int]:
    """A route on the longest bucket alone: views of flat storage, as the engine holds it without the kernel."""
    kept = lengths_of(shape)[0]
    lanes = lengths_of(shape).count(kept) * shape.heads
    stored = torch.randn(2, lanes * (kept + ROOM), shape.dim, device=device, dtype=dtype)
    key, value = (part.unflatten(0, (lanes, kept + ROOM))[:, None] for part in stored)
    mask = torch.zeros(lanes, 1, 1, kept + ROOM, device=device, dtype=dtype)
    mask[..., kept + OPENED :] = -torch.inf
    query = torch.randn(lanes, 1, shape.group, shape.dim, device=device, dtype=dtype)
    exact = by_products(*(x[:1].double() for x in (query, key, value, mask)))
    bytes_read = 2 * lanes * (kept + OPENED) * shape.dim * key.element_size()
    return lambda: route(query, key, value, mask)[:1], exact, bytes_read


def seconds(run: Callable[[], object], device: str, repeats: int = 10) -> float:
    """Mean time of a call, without the first; on a GPU of a captured one, so that the host does not count."""
    if device != "cuda":
        run()
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - started) / repeats
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats


def profile_step(device: str, dtype: torch.dtype, tokens: int) -> dict:
    """One decode step of the engine, 8B geometry and the rows of `SHAPES`, without a graph: kernels by time."""
    from seeded_backbone import seeded_backbone  # beside this file
    from torch.profiler import ProfilerActivity, profile

    from indexmem.engine.cache import RaggedCache
    from indexmem.engine.steps import Steps
    from indexmem.eviction.context import RowCache

    backbone = seeded_backbone("llama-8b", dtype, device)
    geometry = backbone.geometry
    shape = Shape("", 50, geometry.kv_heads, geometry.group, tokens, geometry.head_dim)
    # All layers of all rows share one context: what is kept of it is gathered for each, as in a grid.
    context_HLd = torch.randn(shape.heads, tokens, shape.dim, device=device, dtype=dtype)
    layers = backbone.model.config.num_hidden_layers
    rows = []
    for kept in lengths_of(shape):
        index_HK = torch.arange(kept, device=device).expand(shape.heads, -1)
        rows.append(RowCache([context_HLd] * layers, [context_HLd] * layers, [index_HK] * layers))
    cache = RaggedCache(rows, ROOM)
    steps = Steps(backbone, cache, {}, lambda logits_RV: logits_RV.argmax(-1))
    ids_R1 = torch.full((shape.rows, 1), 5, device=device)
    position_R1, valid_R1 = torch.full_like(ids_R1, tokens), torch.ones_like(ids_R1, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(2):  # the first loads kernels
            steps.feed(ids_R1, position_R1, valid_R1)
        activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiled:
            steps.feed(ids_R1, position_R1, valid_R1)
            if device == "cuda":
                torch.cuda.synchronize()

    def own_time(event) -> float:  # type: ignore[no-untyped-def]
        return event.self_device_time_total if device == "cuda" else event.self_cpu_time_total

    events = sorted(profiled.key_averages(), key=own_time, reverse=True)
    top = [{"kernel": e.key[:90], "us": own_time(e), "calls": e.count} for e in events[:PROFILED_ROWS]]
    total = sum(own_time(event) for event in events)
    return {"tokens": tokens, "step_us": total, "launches": sum(e.count for e in events), "top": top}


def attempt(measure: Callable[[], dict]) -> dict:
    """What it measures, or why it could not: no route's failure ends the run."""
    try:
        return measure()
    except Exception as reason:
        return {"failed": f"{type(reason).__name__}: {str(reason).splitlines()[0][:200] if str(reason) else ''}"}


def measured(make: Callable[[], tuple[Callable[[], Tensor], Tensor, int]], device: str, bandwidth: float) -> dict:
    run, exact, bytes_read = make()
    error = (run().double() - exact).abs().max().item()
    us, floor_us = 1e6 * seconds(run, device), 1e6 * bytes_read / bandwidth
    return {"us": us, "floor_us": floor_us, "times_floor": us / floor_us, "error": error}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--profile-step", action="store_true", help="also profile the engine; needs 40 GiB")
    parser.add_argument("--profile-tokens", type=int, default=4096)
    arguments = parser.parse_args()
    device, on_gpu = arguments.device, arguments.device == "cuda"
    dtype = getattr(torch, arguments.dtype or ("bfloat16" if on_gpu else "float32"))
    bandwidth = copied_bytes_per_second(torch.device(device))
    result: dict = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "bandwidth_GBps": bandwidth / 1e9,
        "rows": [],
    }

    def keep(row: dict) -> None:
        result["rows"].append(row)
        arguments.out.write_text(json.dumps(result, indent=1))
        figures = row.get("failed") or f"{row['us']:10.1f} {row['floor_us']:10.1f} {row['times_floor']:8.2f}"
        print(f"{row['shape']:18} {row['route']:18} {figures}", flush=True)

    print(f"{'shape':18} {'route':18} {'us':>10} {'floor us':>10} {'x floor':>8}")
    for shape in SHAPES if on_gpu else SMALL:
        makers = {f"kernel, {span} keys": partial(by_kernel, shape, device, dtype, span) for span in SPANS}
        makers |= {name: partial(by_torch, route, shape, device, dtype) for name, route in ROUTES.items()}
        for name, make in makers.items():
            figures = attempt(partial(measured, make, device, bandwidth))
            keep({"shape": shape.name, "route": name, **figures})
    if arguments.profile_step:
        result["step"] = attempt(partial(profile_step, device, dtype, arguments.profile_tokens))
        arguments.out.write_text(json.dumps(result, indent=1))
        print(json.dumps(result["step"], indent=1))


if __name__ == "__main__":
    main()
