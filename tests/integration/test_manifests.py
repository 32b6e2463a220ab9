"""What the shipped manifests start, run as they have it, on a head that computes nothing, before a worker is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documented import REPOSITORY
from head_node import can_have_a_second_machine, head_node, second_machine, wire
from waiting import wait_until

from indexmem.cluster import job_server
from indexmem.cluster.job import Job
from indexmem.errors import UserError

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
SERVICE, SPECS, SWEEPS = "http://indexmem-head-svc:8265", "/etc/indexmem", "/opt/indexmem/sweeps"

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not can_have_a_second_machine(), reason="needs the right to make network namespaces"),
]


def small(spec_file: Path, folder: Path) -> None:
    """The names of the shipped specs, with so little in them that two cores are enough."""
    spec = yaml.safe_load(spec_file.read_text())
    spec["grid"] |= {"methods": ["full", "indexer"], "ratios": [0.5], "benchmarks": ["niah_single_1"], "samples": 2}
    del spec["run"]
    (folder / "smoke.yaml").write_text(yaml.safe_dump(spec | {"name": "smoke", "tracking": {"enabled": False}}))
    nightly = yaml.safe_load((KUBERNETES / "nightly" / "nightly.yaml").read_text(encoding="utf-8"))
    (suite,) = nightly["suites"]
    cut = ("distill.use_gpu", "grid.samples", "distill.start_from", "distill.schedule", "distill.joint_from")
    suite["overrides"] = [word for word in suite["overrides"] if not word.startswith(cut)]
    (folder / "nightly.yaml").write_text(yaml.safe_dump(nightly | {"tracking": {"enabled": False}}))


def test_job_and_night_wait_for_a_node_that_joins_later(spec_file, tmp_path):
    specs, home = tmp_path / "specs", tmp_path / "home"
    specs.mkdir()
    small(spec_file, specs)
    (rayjob,) = yaml.safe_load_all((KUBERNETES / "job.yaml").read_text(encoding="utf-8"))
    (cronjob,) = yaml.safe_load_all((KUBERNETES / "nightly.yaml").read_text(encoding="utf-8"))
    (container,) = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert SERVICE in " ".join(container["args"]) and SPECS in " ".join(container["args"])
    assert SWEEPS in rayjob["spec"]["entrypoint"]
    # The worker has a GPU in name only, which is enough to be placed on and not for NCCL.
    entrypoint = rayjob["spec"]["entrypoint"].replace(SWEEPS, str(specs)).replace("use_gpu=true", "use_gpu=false")
    settings = {"INDEXMEM_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    with (
        wire() as (namespace, here, there),
        head_node(tmp_path / "head.log", ip=here, cpus=0, **settings) as head,
    ):

        def start():
            try:
                job = Job("smoke", entrypoint, {})
                return job_server.start_attempt(job_server.job_client(head.jobs), job, {}, "join")
            except UserError:
                return None

        submission = wait_until(start, 240).submission
        client = job_server.job_client(head.jobs)
        words = [*container["command"], *container["args"]]
        words = [word.replace(SERVICE, head.jobs).replace(SPECS, str(specs)) for word in words]
        night = subprocess.Popen(
            [sys.executable, *words[1:]],
            env=os.environ | {"RAY_AUTH_MODE": "disabled"},
            stdout=(tmp_path / "night.log").open("w"),
            stderr=subprocess.STDOUT,
        )
        assert words[0] == "python"
        wait_until(lambda: "waiting for nodes" in client.get_job_logs(submission), 240)
        with second_machine(tmp_path / "worker.log", head, namespace, there, "--num-gpus=1"):
            wait_until(lambda: client.get_job_status(submission).is_terminal(), 900)
            log = client.get_job_logs(submission)
            assert job_server.job_exit_code(client.get_job_info(submission)) == 0, log
            code = night.wait(900)
            said = (tmp_path / "night.log").read_text()
            assert "smoke/distill: done" in said, said
            (job,) = [each for each in client.list_jobs() if (each.submission_id or "").startswith("nightly-")]
            assert code == job_server.job_exit_code(job) == 0, said
    assert f"Report: {home / 'runs' / 'reports' / 'smoke.html'}" in log
    assert list((home / "runs" / "nightly" / "nightly").glob("*/smoke/spec.yaml"))
