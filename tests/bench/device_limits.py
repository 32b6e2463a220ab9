"""What a GPU could do at best: rates from its properties, and the least time of the kernels' work at these rates.

Rates per clock and multiprocessor (NVIDIA's CUDA programming guide, arithmetic instructions): 128 fp32 additions or
multiply-adds, 64 comparisons, maxima or selections, 16 exponentials.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import torch

MAXIMA, EXPONENTIALS = 64, 16
TENSOR_FLOP = {8: 2048, 9: 4096}  # bf16, dense, by major compute capability: A100, H100
SUSTAINED_H200 = {"tensor": 790e12, "bytes": 4.3e12}  # what goals for one H200 count with; its peaks are higher
ASSUMED_CLOCK = 1.755e9  # of an H100, where none can be read


@dataclass(frozen=True)
class Limits:
    """Of one device; per second."""

    name: str
    processors: int
    clock: float
    tensor: float  # bf16 FLOP
    bytes: float  # measured with a copy

    @classmethod
    def of(cls, device: torch.device, copied_bytes_per_second: float) -> Limits:
        """A CPU has those of one H100, so that the whole bench can be tried there; its ratios then mean nothing."""
        if device.type != "cuda":
            return cls("cpu", 132, ASSUMED_CLOCK, 132 * ASSUMED_CLOCK * TENSOR_FLOP[9], copied_bytes_per_second)
        properties = torch.cuda.get_device_properties(device)
        count, clock = properties.multi_processor_count, _clock()
        tensor = count * clock * TENSOR_FLOP.get(properties.major, TENSOR_FLOP[9])
        return cls(properties.name, count, clock, tensor, copied_bytes_per_second)

    def ops(self, count: float, per_clock: int) -> float:
        """Seconds of so many operations outside the tensor cores."""
        return count / (self.processors * self.clock * per_clock)


def indexer_floor(limits: Limits, tokens: int, heads: int, dim: int, element_size: int) -> dict[str, float]:
    """Seconds: by CUDA cores (a maximum per head and one over queries), tensor cores and memory.

    fp32 products are three TF32 ones at half the rate of bf16.
    """
    pairs = tokens * (tokens + 1) / 2
    return {
        "cuda_cores": limits.ops(pairs * (heads + 1), MAXIMA),
        "tensor_cores": 2 * pairs * heads * dim * (6 if element_size == 4 else 1) / limits.tensor,
        "memory": tokens * ((heads + 1) * dim * element_size + 4 * heads + 12) / limits.bytes,
    }


def teacher_floor(limits: Limits, tokens: int, heads: int, kv_heads: int, dim: int) -> dict[str, float]:
    """Seconds of the maximum over queries, given the log-sum-exp, of bf16 inputs."""
    pairs = tokens * (tokens + 1) / 2
    return {
        "cuda_cores": limits.ops(pairs * heads, MAXIMA),
        "tensor_cores": 2 * pairs * heads * dim / limits.tensor,
        "memory": tokens * (2 * (heads + kv_heads) * dim + 4 * heads + 4 * kv_heads) / limits.bytes,
    }


def lse_floor(limits: Limits, tokens: int, heads: int, kv_heads: int, dim: int) -> dict[str, float]:
    """Seconds of the rows' log-sum-exp: the same products, and an exponential each."""
    pairs = tokens * (tokens + 1) / 2
    return teacher_floor(limits, tokens, heads, kv_heads, dim) | {"cuda_cores": limits.ops(pairs * heads, EXPONENTIALS)}


def reread_floor(
    limits: Limits, chunks: Sequence[tuple[int, int]], heads: int, kv_heads: int, dim: int
) -> dict[str, float]:
    """Seconds of the maximum over a second reading, of bf16 inputs; of each chunk its queries and its keys."""
    pairs = sum(queries * keys for queries, keys in chunks)
    queries, keys = (sum(counts) for counts in zip(*chunks))
    return {
        "cuda_cores": limits.ops(pairs * heads, MAXIMA),
        "tensor_cores": 2 * pairs * heads * dim / limits.tensor,
        "memory": (queries * heads * (2 * dim + 4) + keys * kv_heads * (2 * dim + 4)) / limits.bytes,
    }


def _clock() -> float:
    """The highest clock of the first GPU's multiprocessors, in Hz."""
    query = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) * 1e6
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return ASSUMED_CLOCK
