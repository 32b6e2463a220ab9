"""`indexmem ui`: both servers up, one Ctrl-C ends both, and mistakes are told before anything starts."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from waiting import wait_until

from indexmem.cli import main


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def answers(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.fixture
def start(tmp_path):
    """Starts the command on a root; what is left of it afterwards is ended."""
    started = []

    def run(*options: str) -> subprocess.Popen:
        # A shell that runs the suite in the background lets it ignore Ctrl-C, and so would what it starts.
        code = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "from indexmem.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", code, "ui", "--root", str(tmp_path), *options]
        with (tmp_path / "ui.log").open("w") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_one_ctrl_c_ends_both_servers(start, tmp_path):
    (tmp_path / "mlflow.db").touch()  # MLflow makes its tables in it
    port, mlflow_port = free_ports(2)
    process = start("--port", str(port), "--mlflow-port", str(mlflow_port))
    wait_until(lambda: process.poll() is not None or (answers(port) and answers(mlflow_port)))
    assert process.poll() is None, "it ended"
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 1
    said = (tmp_path / "ui.log").read_text()
    assert f"Runs and reports: http://127.0.0.1:{port}\n" in said
    assert f"http://127.0.0.1:{mlflow_port}\n" in said
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(120) == 0
    assert psutil.wait_procs(children, timeout=20)[1] == [], "MLflow outlived its parent"
    assert not answers(port) and not answers(mlflow_port)
    assert "Traceback" not in (tmp_path / "ui.log").read_text()


def test_without_anything_published_the_pages_are_served_alone_and_sigterm_ends_them(start, tmp_path):
    port, mlflow_port = free_ports(2)
    process = start("--port", str(port), "--mlflow-port", str(mlflow_port))
    wait_until(lambda: process.poll() is not None or answers(port))
    assert process.poll() is None, "it ended"
    assert not answers(mlflow_port)
    process.terminate()
    assert process.wait(120) == 0
    assert "nothing is published in this root yet" in (tmp_path / "ui.log").read_text()


@pytest.mark.parametrize("which", ["--port", "--mlflow-port"])
def test_a_taken_port_is_told_and_nothing_starts(tmp_path, capsys, which):
    (tmp_path / "mlflow.db").touch()
    before = psutil.Process().children()
    ports = dict(zip(("--port", "--mlflow-port"), free_ports(2)))
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[which]))
        other.listen()
        options = [word for name, port in ports.items() for word in (name, str(port))]
        assert main(["ui", "--root", str(tmp_path), *options]) == 2
    assert f"cannot have port {ports[which]} on 127.0.0.1" in capsys.readouterr().err
    assert psutil.Process().children() == before


def test_a_missing_root_and_equal_ports_are_told(tmp_path, capsys):
    assert main(["ui", "--root", str(tmp_path / "none")]) == 2
    assert "No results at" in capsys.readouterr().err
    assert main(["ui", "--root", str(tmp_path), "--port", "5000"]) == 2
    assert "choose two ports" in capsys.readouterr().err
