"""Ray: the only place that connects to a cluster."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from indexmem.errors import UserError
from indexmem.extras import need

if TYPE_CHECKING:
    from ray._private.worker import RayContext

need("ray", "ray")

# Ray Train polls its workers every 2 s by default and makes each report() wait for it.
TRAIN_POLL_SECONDS = "0.5"
NODE_NOTE_SECONDS = 15.0  # between notes while waiting for nodes


@contextmanager
def ray_cluster(address: str | None = None, cpus: int | None = None) -> Iterator[RayContext]:
    """Connect to Ray for the duration of a job; yields what `ray.init` returned.

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
        context: Any = ray.init(
            address=address or "local",
            runtime_env={"env_vars": worker_env},
            logging_level=logging.ERROR,
            log_to_driver=False,
            **options,
        )
    except ConnectionError as error:
        raise UserError(f"No Ray cluster at '{address}': {error}. Start one with `ray start --head`.") from None
    try:
        yield context
    finally:
        ray.shutdown()


def check_resources(workers: int, cpus: float, gpus: float) -> None:
    """Raise UserError when the connected cluster can never place `workers` workers of this size.

    Ray itself would wait for ever.
    """
    import ray

    if room(cpus, gpus) < workers:
        total = ray.cluster_resources()
        raise UserError(
            f"{workers} workers with {cpus:g} CPU and {gpus:g} GPU each do not fit this cluster "
            f"({total.get('CPU', 0):g} CPU, {total.get('GPU', 0):g} GPU). Lower the number of workers or add nodes; "
            "run.wait_for_nodes=SECONDS waits for nodes that an autoscaler starts."
        )


def wait_for_nodes(workers: int, cpus: float, gpus: float, seconds: float, say: Callable[[str], None]) -> None:
    """Ask the cluster's autoscaler for room for `workers` workers of this size; return when it is there or time is up.

    What is there then is for others to judge. Ray has no public way to tell what an autoscaler could add, so only time
    decides. The request is a placement group: it ends with this process, however that ends.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    if seconds <= 0 or room(cpus, gpus) >= workers:
        return
    bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    request = placement_group([bundle] * workers)
    started = time.monotonic()
    try:
        while (waited := time.monotonic() - started) < seconds and room(cpus, gpus) < workers:
            total = ray.cluster_resources()
            say(
                f"waiting for nodes: {workers} x {cpus:g} CPU and {gpus:g} GPU wanted, the cluster has "
                f"{total.get('CPU', 0):g} CPU and {total.get('GPU', 0):g} GPU, {waited:.0f} of {seconds:.0f} s"
            )
            request.wait(max(1.0, min(NODE_NOTE_SECONDS, seconds - waited)))  # Ray waits for whole seconds
    finally:
        remove_placement_group(request)


def room(cpus: float, gpus: float) -> int:
    """Workers of this size that the living nodes hold when nothing else runs there."""
    import ray

    return sum(workers_on(node["Resources"], cpus, gpus) for node in ray.nodes() if node["Alive"])


def workers_on(resources: Mapping[str, float], cpus: float, gpus: float) -> int:
    """How many workers of this size one node holds; a part of a GPU always comes from one GPU."""
    held = int(resources.get("CPU", 0) // cpus)
    if not gpus:
        return held
    have = resources.get("GPU", 0)
    return min(held, int(have) * int(1 / gpus + 1e-9) if gpus < 1 else int(have // gpus))
