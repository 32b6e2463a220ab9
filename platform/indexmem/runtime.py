"""Ray: the only place that connects to a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from indexmem.errors import UserError

# Ray Train polls its workers every 2 s by default and makes each report() wait for it.
TRAIN_POLL_SECONDS = "0.5"


@contextmanager
def cluster(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """Connect to Ray for the duration of a job.

    The address is the argument, else RAY_ADDRESS (set inside `ray job submit`), else a private cluster on this machine.
    `cpus` sizes a private cluster only. Raises UserError when a named cluster cannot be reached.
    """
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", TRAIN_POLL_SECONDS)
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        # A private cluster needs no token, and without this Ray leaves a token file behind that turns authentication
        # on for the user's next `ray start --head`.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # A submitted job may set the same variables for its workers; Ray would call even equal values a conflict.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    import ray

    worker_env = {
        name: os.environ[name]
        for name in ("INDEXMEM_HOME", "INDEXMEM_GIT_COMMIT", "MLFLOW_TRACKING_URI", "HF_HOME", "HF_HUB_OFFLINE")
        if name in os.environ
    }
    options: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address is None else {}
    try:
        ray.init(
            address=address or "local",
            runtime_env={"env_vars": worker_env},
            logging_level=logging.ERROR,
            log_to_driver=False,
            **options,
        )
    except ConnectionError as error:
        raise UserError(f"No Ray cluster at '{address}': {error}. Start one with `ray start --head`.") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_resources(workers: int, cpus: float, gpus: float) -> None:
    """Raise UserError when the connected cluster can never place `workers` workers of this size.

    Ray itself would wait for ever.
    """
    import ray

    total = ray.cluster_resources()
    have_cpus, have_gpus = total.get("CPU", 0), total.get("GPU", 0)
    if workers * cpus > have_cpus or workers * gpus > have_gpus:
        raise UserError(
            f"{workers} workers with {cpus:g} CPU and {gpus:g} GPU each do not fit this cluster "
            f"({have_cpus:g} CPU, {have_gpus:g} GPU). Lower the number of workers or add nodes."
        )
