"""What a person at the terminal is told: progress to stderr, results to stdout."""

from __future__ import annotations

import sys

PROGRESS_SECONDS = 10.0  # between progress lines


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
