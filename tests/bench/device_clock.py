"""Seconds of work on a device: CUDA events on a GPU, the process' clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

FLUSHED_BYTES = 2**28  # more than any L2 cache


def seconds(
    work: Callable[[], object], device: torch.device, repeats: int, limit: float = 5.0, warm: bool = False
) -> float:
    """Median of `repeats` runs, or of as many as fit into `limit` seconds, after one that warms up unless it is `warm`.

    On a GPU the L2 cache is overwritten before each, as other layers' work would.
    """
    if not warm:
        work()
    scratch = torch.empty(FLUSHED_BYTES if device.type == "cuda" else 1, dtype=torch.uint8, device=device)
    times: list[float] = []
    while len(times) < repeats and sum(times) < limit:
        scratch.zero_()
        times.append(_once(work, device))
    return median(times)


def copied_bytes_per_second(device: torch.device) -> float:
    """Bytes read and written by a copy, in a second."""
    source = torch.empty(2**30 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repeats=5)


def _once(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
