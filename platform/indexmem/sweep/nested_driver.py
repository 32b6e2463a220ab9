"""The driver of a trial's training: `python -m indexmem.sweep.nested_driver ADDRESS`, with the spec on stdin.

It ends when its stdin does, which is when the process that started it has ended.
"""

from __future__ import annotations

import os
import sys
import threading

from indexmem.cluster.connection import ray_cluster
from indexmem.config.schema import Experiment
from indexmem.distill.runs import DistillRun
from indexmem.distill.train import train


def main(address: str) -> int:
    """Train the spec to its end and publish the run; returns the number of the signal that ended it early, else 0."""
    spec = Experiment.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with ray_cluster(address):
        return train(spec, DistillRun.of(spec), lambda rows: None) or 0


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
