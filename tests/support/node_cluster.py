"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from ray.cluster_utils import Cluster

MEMORY = 80 * 2**20  # bytes of a node's object store


@contextmanager
def two_node_cluster(cpus: int) -> Iterator[Cluster]:
    """A head that computes nothing and two nodes with so many CPUs; no process of it is left behind."""
    before = set(psutil.Process().children(recursive=True))
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        add_node(cluster, cpus)
    yield cluster
    started = set(psutil.Process().children(recursive=True)) - before
    cluster.shutdown()
    _, left = psutil.wait_procs(started, timeout=20)
    assert [process.name() for process in left] == []


def add_node(cluster: Cluster, cpus: int) -> None:
    cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY)
