"""Trials that train on several workers: a driver of their own trains, a task of their own evaluates.

The driver is this module as a program, `python -m indexmem.sweep.nested ADDRESS`, with the spec on stdin.

Ray frees what a driver holds when its process ends, however that ends. What a killed actor holds Ray Train frees with
the help of a dashboard only, and a sweep without would wait for ever for the workers of trials that were ended early.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray

from indexmem.cluster.connection import ray_cluster
from indexmem.config.schema import Experiment
from indexmem.config.spec import as_said
from indexmem.distill.runs import DistillRun
from indexmem.distill.train import train
from indexmem.sweep.training import Report, SpanReporter
from indexmem.sweep.trial import InProcess, Outcome

POLL_SECONDS = 0.5
SAID = 2000  # characters of a failed driver's last words


class OnWorkers:
    """On workers that take their resources themselves; the trial's own process takes none."""

    def train(self, spec: Experiment, run: DistillRun, report: Report) -> None:
        """Raises RuntimeError with what the driver said when it failed."""
        reporter = SpanReporter(spec, run, report)
        with tempfile.TemporaryFile() as log:
            driver = _start(spec, log)
            try:
                while driver.poll() is None:
                    reporter.update()  # does not return when the trial is ended early
                    time.sleep(POLL_SECONDS)
            finally:
                driver.kill()
                driver.wait()
            if driver.returncode:
                log.seek(0)
                raise RuntimeError(f"training ended with {driver.returncode}: {log.read().decode()[-SAID:]}")
        reporter.update()

    def evaluate(self, spec: Experiment, provenance: Mapping[str, Any]) -> Outcome:
        task = evaluation_task(spec, provenance, spec.grid.cpus_per_actor, spec.grid.gpus_per_actor)
        outcome: Outcome = ray.get(task)
        return outcome


def evaluation_task(spec: Experiment, provenance: Mapping[str, Any], cpus: int, gpus: float) -> ray.ObjectRef:
    """A task that evaluates the spec's grid where there is room for it; gives an Outcome, or raises RuntimeError."""
    # Without a strategy it would wait for a place within a trial's own resources, which are none.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="DEFAULT")(_evaluate)
    return task.remote(as_said(spec), dict(provenance))


def _start(spec: Experiment, log: Any) -> subprocess.Popen[bytes]:
    """A driver that trains `spec` on this cluster, with this process's code, and ends with this process."""
    context = ray.get_runtime_context()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": dict(context.runtime_env)}),
    }
    driver = subprocess.Popen(
        [sys.executable, "-m", "indexmem.sweep.nested", context.gcs_address],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
    )
    assert driver.stdin is not None
    driver.stdin.write(json.dumps(as_said(spec)).encode() + b"\n")
    driver.stdin.flush()
    return driver


def _evaluate(spec: dict[str, Any], provenance: dict[str, Any]) -> Outcome:
    return InProcess().evaluate(Experiment.model_validate(spec), provenance)


def train_from_stdin(address: str) -> int:
    """Train the spec to its end and publish the run; returns the number of the signal that ended it early, else 0.

    The process ends when its stdin does, which is when the process that started it has ended.
    """
    spec = Experiment.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with ray_cluster(address):
        return train(spec, DistillRun.of(spec), lambda rows: None) or 0


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(train_from_stdin(sys.argv[1]))
