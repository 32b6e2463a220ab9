"""Attention of one decode step over a bucket of lanes, by every route that torch offers, against the memory floor.

    python tests/bench/decode_attention.py --out attention.json [--device cuda]

A bucket has N lanes with g queries each, T columns of K and V, and a mask. The floor is reading K and V once at the
measured bandwidth. Routes that a device does not have are reported with their reason.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# (lanes, queries a lane, columns, head_dim): SmolLM2 at 4K alone and eight samples at once, Llama-3.1-8B at 16K.
SHAPES = ((90, 3, 3000, 64), (720, 3, 3000, 64), (80, 4, 12000, 128), (320, 4, 1504, 128))
SMALL = ((30, 3, 512, 64), (90, 3, 1024, 64))
ROOM, FREE = 160, 130  # columns behind the kept ones, and how many of them hold nothing yet


def by_backend(backend: SDPBackend, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Two matrix products and a softmax in fp32; logits rounded to the inputs' type."""
    logits = (query @ key.transpose(-1, -2)).float() * key.shape[-1] ** -0.5 + mask
    return logits.softmax(-1).to(value.dtype) @ value


def by_exact_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The same with logits that were summed and kept in fp32."""
    products = torch.bmm(query[:, 0], key[:, 0].transpose(-1, -2), out_dtype=torch.float32)[:, None]
    return (products * key.shape[-1] ** -0.5 + mask).softmax(-1).to(value.dtype) @ value


ROUTES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "default": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    "expanded mask": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m.expand(*q.shape[:3], -1)),
    "efficient": partial(by_backend, SDPBackend.EFFICIENT_ATTENTION),
    "cudnn": partial(by_backend, SDPBackend.CUDNN_ATTENTION),
    "math": partial(by_backend, SDPBackend.MATH),
    "products": by_products,
    "exact products": by_exact_products,
}


def bucket(shape: tuple[int, int, int, int], device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and mask as the cache holds them: views of flat storage."""
    lanes, queries, columns, dim = shape
    total = columns + ROOM
    stored = torch.randn(2, lanes * total, dim, device=device, dtype=dtype)
    key, value = (part.unflatten(0, (lanes, total))[:, None] for part in stored)
    mask = torch.zeros(lanes * total, device=device, dtype=dtype).unflatten(0, (lanes, total))
    mask[:, total - FREE :] = -torch.inf
    return torch.randn(lanes, 1, queries, dim, device=device, dtype=dtype), key, value, mask[:, None, None]


def seconds(run: Callable[[], object], device: str, repeats: int = 10) -> float:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    run()
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    wait()
    return (time.perf_counter() - started) / repeats


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None)
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    dtype = getattr(torch, arguments.dtype or ("bfloat16" if on_gpu else "float32"))
    block = torch.empty(2**28 if on_gpu else 2**26, device=arguments.device)
    bandwidth = block.nbytes / seconds(block.sum, arguments.device)
    rows = []
    for shape in SHAPES if on_gpu else SMALL:
        inputs = bucket(shape, arguments.device, dtype)
        exact = by_products(*(x.double() for x in inputs))
        row: dict = {"shape": shape, "floor_us": 1e6 * 2 * inputs[1].nbytes / bandwidth}
        for name, route in ROUTES.items():
            try:
                error = (route(*inputs).double() - exact).abs().max().item()
                row[name] = {"us": 1e6 * seconds(partial(route, *inputs), arguments.device), "error": error}
            except (RuntimeError, TypeError) as reason:
                row[name] = {"refused": str(reason).splitlines()[0][:120]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    result = {"device": device, "torch": torch.__version__, "bandwidth_GBps": bandwidth / 1e9, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
