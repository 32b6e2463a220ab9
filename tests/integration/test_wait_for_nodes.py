"""A cluster that starts from zero: Ray's own autoscaler, whose nodes are processes of this machine."""

import os
import subprocess
import sys

import pytest
import yaml
from head_node import free_ports, head_node
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FAKE_HEAD_NODE_TYPE

pytestmark = pytest.mark.ray

# In a process of its own, since the session's other tests are connected to another cluster.
DRIVER = """
import sys
from indexmem.errors import UserError
from indexmem.cluster.connection import check_resources, ray_cluster, wait_for_nodes

def attempt(workers, cpus, seconds):
    wait_for_nodes(workers, cpus, 0, seconds, print)
    try:
        check_resources(workers, cpus, 0)
        print(f"{workers} x {cpus}: there")
    except UserError as error:
        print(f"{workers} x {cpus}: {error}")

with ray_cluster(sys.argv[1]):
    attempt(1, 2, 0)
    attempt(1, 2, 60)
    attempt(1, 2, 60)
    attempt(1, 3, 1)
"""


def autoscaling(port: int) -> dict:
    """At most one worker of 2 CPUs, none to begin with."""
    provider = {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "head_node_id": FAKE_HEAD_NODE_ID,
        "launch_multiple": True,
        "gcs_address": f"127.0.0.1:{port}",
    }
    types = {
        FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 0}, "max_workers": 0, "node_config": {}},
        "worker": {"resources": {"CPU": 2}, "min_workers": 0, "max_workers": 1, "node_config": {}},
    }
    lists = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
    lists += ("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude")
    return {
        "cluster_name": "zero",
        "max_workers": 1,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": provider,
        "auth": {},
        "available_node_types": types,
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "rsync_filter": [],
    } | {name: [] for name in lists}


@pytest.mark.slow  # the jobs of test_submit.py wait for nodes, too; here an autoscaler starts them
def test_nodes_are_asked_for_and_waited_for_and_what_no_node_can_hold_is_refused_in_time(tmp_path):
    (port,) = free_ports(1)
    config = tmp_path / "cluster.yaml"
    config.write_text(yaml.safe_dump(autoscaling(port)))
    variables = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    }
    options = [f"--autoscaling-config={config}"]
    with head_node(tmp_path / "head.log", *options, port=port, cpus=0, **variables) as head:
        environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
        command = [sys.executable, "-c", DRIVER, head.gcs]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if not line.startswith("waiting for nodes")]
    refused = "do not fit this cluster ({cpus} CPU, 0 GPU). Lower the number of workers or add nodes;"
    assert len(said) == 4
    assert refused.format(cpus=0) in said[0]
    assert said[1:3] == ["1 x 2: there"] * 2
    assert refused.format(cpus=2) in said[3]
    waiting = [line for line in done.stdout.splitlines() if line.startswith("waiting for nodes")]
    assert waiting[0].startswith(
        "waiting for nodes: 1 x 2 CPU and 0 GPU wanted, the cluster has 0 CPU and 0 GPU, 0 of 60"
    )
    assert any("1 x 3 CPU" in line for line in waiting)
