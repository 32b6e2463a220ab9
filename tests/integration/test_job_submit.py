"""A job submitted to a real head node, as documented: code shipped with the job, results where the job says.

The node has its own processes, ports and folder, so it may run beside another cluster of this machine. It is ended by
its own processes; `ray stop` would end every cluster of the host.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import mlflow
import psutil
import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from indexmem.config.load import load
from indexmem.evaluate.grid import plan

pytestmark = pytest.mark.ray

REPOSITORY = Path(__file__).parents[2]
COMMIT = "c0ffee" * 6 + "c0ff"
OVERRIDES = ["grid.methods=[full, knorm]", "grid.benchmarks=[niah_single_1]", "grid.samples=2", "run.root=null"]


def copy_of_repository(target: Path) -> Path:
    """The files that git knows or would add: what a clean clone of this tree holds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    for name in filter(None, listing.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, target / name)
    return target


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def head_node(log: Path):
    """`ray start --head` for the duration of the block; yields the address of its job server."""
    dashboard, client, agent = free_ports(3)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    # `python` of a submitted command is found on the PATH that the node was started with.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    # A short folder of its own: Ray puts sockets there, whose paths may have about 100 characters.
    with (
        tempfile.TemporaryDirectory(prefix="im-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        log.open("w") as out,
    ):
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--num-cpus=2",
            "--port=0",
        ]
        command += [f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}", f"--temp-dir={folder}"]
        command += [f"--dashboard-agent-listen-port={agent}", "--min-worker-port=0", "--max-worker-port=0"]
        node = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            yield f"http://127.0.0.1:{dashboard}"
        finally:
            end(psutil.Process(node.pid))
            node.wait()


def end(leader: psutil.Process) -> None:
    """Ask the node to stop, then kill what is left of it: every process that it started, and nothing else."""
    family = [leader, *leader.children(recursive=True)]
    leader.terminate()
    psutil.wait_procs(family, timeout=10)
    for process in family:
        if process.is_running():  # compares the start time too, so a reused pid is safe
            process.kill()
    psutil.wait_procs(family, timeout=10)


def submit(address: str, limit: float = 60.0, **job) -> JobSubmissionClient:
    """Submit as soon as the node takes jobs. A job is submitted once: its id is given by the caller."""
    deadline = time.monotonic() + limit
    while True:
        try:
            client = JobSubmissionClient(address)
            client.submit_job(**job)
            return client
        except (ConnectionError, RuntimeError) as error:
            starting = isinstance(error, ConnectionError) or "No available agent" in str(error)
            if not starting or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def wait(client: JobSubmissionClient, job: str, limit: float = 120.0) -> JobStatus:
    deadline = time.monotonic() + limit
    while not (status := client.get_job_status(job)).is_terminal() and time.monotonic() < deadline:
        time.sleep(0.3)
    return status


def test_a_submitted_grid_runs_on_the_cluster_with_the_code_it_brought(spec_file, tmp_path, monkeypatch):
    code = copy_of_repository(tmp_path / "repository")
    home = tmp_path / "home"
    shipped = {
        "working_dir": str(code),
        "py_modules": [str(code / "platform" / "indexmem")],
        "env_vars": {"INDEXMEM_HOME": str(home), "INDEXMEM_GIT_COMMIT": COMMIT, "HF_HUB_OFFLINE": "1"},
    }
    entrypoint = shlex.join(["python", "jobs/eval_grid.py", str(spec_file), *OVERRIDES])
    with head_node(tmp_path / "head.log") as address:
        client = submit(address, submission_id="grid-1", entrypoint=entrypoint, runtime_env=shipped)
        assert wait(client, "grid-1") == JobStatus.SUCCEEDED, client.get_job_logs("grid-1")
        logs, info = client.get_job_logs("grid-1"), client.get_job_info("grid-1")
        submit(address, submission_id="grid-2", entrypoint=f"{entrypoint} grid.ratio=[1]", runtime_env=shipped)
        assert wait(client, "grid-2") == JobStatus.FAILED
        mistake = client.get_job_logs("grid-2")
        exit_code = client.get_job_info("grid-2").driver_exit_code

    assert "full cache, nothing evicted" in logs
    assert f"Report: {home / 'runs' / 'reports' / 'tiny.html'}" in logs
    assert info.driver_info is not None, "the driver did not connect to the cluster that it was submitted to"
    assert "unknown key 'grid.ratio'. Did you mean 'ratios'?" in mistake
    assert exit_code == 2

    monkeypatch.setenv("INDEXMEM_HOME", str(home))
    grid = plan(load(spec_file, OVERRIDES))
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids).to_pylist()
    assert len(rows) == grid.row_count == 3 * 2
    assert grid.remaining() == []
    # The checkout's own commit would mean that the installed package ran, not the one that was shipped.
    assert {row["git_commit"] for row in rows} == {COMMIT}
    assert all(json.loads(row["versions"])["ray"] for row in rows)
    assert (home / "runs" / "reports" / "tiny.html").is_file()

    mirror = mlflow.MlflowClient(f"sqlite:///{home}/runs/mlflow.db")
    runs = mirror.search_runs([mirror.get_experiment_by_name("indexmem/eval").experiment_id])
    assert {run.data.tags["ray.submission_id"] for run in runs} == {"grid-1"}
