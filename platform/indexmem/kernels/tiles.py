"""What kernels share: products of tiles, the cut of the queries into chunks, the choice among few configurations.

Shapes: M rows, N columns, K summed dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from indexmem.kernels.dispatch import interpreted

SMALLEST_DOT = 16  # rows, columns and summed dimension that a product must have
SHORTEST_CHUNK = 256  # queries: a program's own costs are then small beside its tiles
LOG2_E = tl.constexpr(1.4426950408889634)  # kernels compute exponentials in base 2
INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def product(a_MK, b_KN, sum_MN):  # type: ignore[no-untyped-def]  # tiles of a kernel
    """sum + a b in fp32: from bf16 and fp16 exactly, from fp32 as three TF32 products (about as exact as fp32)."""
    if INTERPRETED:  # which has no products of bf16
        a_MK, b_KN = a_MK.to(tl.float32), b_KN.to(tl.float32)
    return tl.dot(a_MK, b_KN, sum_MN, input_precision="tf32x3")


def autotuned(
    half: Sequence[triton.Config], single: Sequence[triton.Config], key: Sequence[str]
) -> Callable[[Any], Any]:
    """`triton.autotune` that remembers its choices on disk; interpreted, the first configuration is taken.

    `half` are for 16-bit inputs, `single` for fp32 ones (of `q_ptr`), whose products need more registers and shared
    memory. `key` names arguments with few values: a configuration is measured once for each combination of them.
    """

    def fitting(_: Any, arguments: dict[str, Any], **__: Any) -> list[triton.Config]:
        return list(single if arguments["q_ptr"].dtype == torch.float32 else half)

    configs = half[:1] if interpreted() else (*half, *single)
    return triton.autotune(
        list(configs), key=list(key), prune_configs_by={"early_config_prune": fitting}, cache_results=True
    )


def chunk_of(pairs: int, keys: int, programs: int, shortest: int = SHORTEST_CHUNK) -> int:
    """Queries of a chunk, a power of two, for a pass over so many pairs of a query and a key, of all lanes together.

    With blocks of `keys` keys the grid then has up to `programs` programs with work.
    """
    return triton.next_power_of_2(max(shortest, pairs // (keys * programs)))
