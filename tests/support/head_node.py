"""Ray nodes of one's own: they may run beside other clusters of the machine, and end without `ray stop`.

`second_machine` gives a node its own network and its own folder for Ray's files, as on another host. Two nodes that
share that folder delete each other's working directories: a driver of a job that travels with files then stands in a
folder that is gone, and torch's MKL ends it ("Cannot load libtorch_cpu.so").
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@dataclass(frozen=True)
class Head:
    jobs: str  # address of the job server
    gcs: str  # address that other nodes join
    folder: Path  # Ray's files


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def head_node(
    log: Path, *options: str, ip: str = "127.0.0.1", port: int = 0, cpus: int = 2, **variables: str
) -> Iterator[Head]:
    """`ray start --head` for the duration of the block; other nodes join it at `port`."""
    dashboard, client, agent, free = free_ports(4)
    port = port or free
    # A short folder of its own: Ray puts sockets there, whose paths may have about 100 characters.
    with tempfile.TemporaryDirectory(prefix="im-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [*RAY, "start", "--head", "--block", f"--num-cpus={cpus}", f"--node-ip-address={ip}"]
        command += [f"--port={port}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
        command += [f"--dashboard-agent-listen-port={agent}", "--min-worker-port=0", "--max-worker-port=0"]
        with _running([*command, f"--temp-dir={folder}", *options], log, variables):
            yield Head(f"http://127.0.0.1:{dashboard}", f"{ip}:{port}", Path(folder))


def can_have_a_second_machine() -> bool:
    """Whether this user may create network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"im{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    return made and subprocess.run(["ip", "netns", "delete", name], capture_output=True).returncode == 0


@contextmanager
def wire() -> Iterator[tuple[str, str, str]]:
    """A network namespace joined to this one by a cable: its name, this end's address, the other end's."""
    name, number = f"im{os.getpid()}", os.getpid() % 250
    here, there = f"10.213.{number}.1", f"10.213.{number}.2"
    commands = [
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name eth0 netns {name}",
        f"ip address add {here}/24 dev {name}",
        f"ip link set {name} up",
        f"ip -n {name} address add {there}/24 dev eth0",
        f"ip -n {name} link set eth0 up",
        f"ip -n {name} link set lo up",
        f"ip -n {name} route add default via {here}",  # Ray asks for the way out to learn its own address
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield name, here, there
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def second_machine(log: Path, head: Head, namespace: str, ip: str, *options: str, cpus: int = 2) -> Iterator[None]:
    """A node that shares nothing with the head but the disk, not even the folder of Ray's files."""
    start = [*RAY, "start", "--block", f"--address={head.gcs}", f"--num-cpus={cpus}", f"--node-ip-address={ip}"]
    start += ["--min-worker-port=0", "--max-worker-port=0", *options]
    # `ip netns exec` has its own mount table, so the mount below is seen by this node alone, and gone with it.
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    with _running(["ip", "netns", "exec", namespace, "sh", "-c", script, str(head.folder), *start], log, {}):
        yield


@contextmanager
def _running(command: Sequence[str], log: Path, variables: dict[str, str]) -> Iterator[None]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"} | variables
    environment.pop("RAY_ADDRESS", None)
    # `python` of a submitted command is found on the PATH that the node was started with.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            yield
        finally:
            _end(psutil.Process(process.pid))
            process.wait()


def _end(leader: psutil.Process) -> None:
    """Ask the node to stop, then kill what is left of it: every process that it started, and nothing else."""
    family = [leader, *leader.children(recursive=True)]
    leader.terminate()
    psutil.wait_procs(family, timeout=10)
    for process in family:
        if process.is_running():  # compares the start time too, so a reused pid is safe
            process.kill()
    psutil.wait_procs(family, timeout=10)
