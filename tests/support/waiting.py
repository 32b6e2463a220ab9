"""Waiting for what other processes do, long enough for a machine that is busy with other tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = 120.0) -> T:
    """The condition's first true value; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen in {seconds:.0f} s"
        time.sleep(0.05)
    return value
