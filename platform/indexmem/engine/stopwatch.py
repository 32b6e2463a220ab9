"""Seconds of named parts of a computation, without making the GPU wait for the clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """On CUDA it records events and reads them once, at the end; elsewhere it reads the clock."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: dict[str, list[tuple[float | torch.cuda.Event, float | torch.cuda.Event]]] = defaultdict(list)

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time spent within to `part`, also when it ends with an error."""
        begin = self._now()
        try:
            yield
        finally:
            self._spans[part].append((begin, self._now()))

    def seconds(self) -> dict[str, float]:
        """Time of each part so far. Waits for the GPU."""
        if self._cuda:
            torch.cuda.synchronize()
        return {part: sum(_between(*span) for span in spans) for part, spans in self._spans.items()}

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return begin.elapsed_time(end) / 1000
