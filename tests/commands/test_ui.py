"""`indexmem ui`: MLflow up, all addresses named, one Ctrl-C ends it, mistakes are told before anything starts."""

import os
import re
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
from indexmem.tracking.mlflow_store import open_store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


def test_one_ctrl_c_ends_mlflow_and_all_is_named(start, tmp_path, monkeypatch):
    open_store(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path).create_experiment("indexmem/eval")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "smoke.html").touch()
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    port = free_port()
    process = start("--port", str(port), "--open")
    wait_until(lambda: process.poll() is not None or "Ctrl-C ends" in (tmp_path / "ui.log").read_text())
    assert process.poll() is None, "it ended"
    assert answers(port)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 1
    said = (tmp_path / "ui.log").read_text()
    shown = re.search(rf"indexmem/eval: (http://127.0.0.1:{port}/#/experiments/\d+/runs\?workflowType=\S+)", said)
    assert shown and (tmp_path / "opened").read_text().strip() == shown[1]
    assert f"Report: {(tmp_path / 'reports' / 'smoke.html').as_uri()}\n" in said
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(120) == 0
    assert psutil.wait_procs(children, timeout=20)[1] == [], "MLflow outlived its parent"
    assert not answers(port)
    assert "Traceback" not in (tmp_path / "ui.log").read_text()


def test_sigterm_ends_it_too(start, tmp_path):
    (tmp_path / "mlflow.db").touch()  # MLflow makes its tables in it
    port = free_port()
    process = start("--mlflow-port", str(port))  # what the option was called
    wait_until(lambda: process.poll() is not None or answers(port))
    assert process.poll() is None, "it ended"
    process.terminate()
    assert process.wait(120) == 0


def test_a_taken_port_is_told_and_nothing_starts(tmp_path, capsys):
    (tmp_path / "mlflow.db").touch()
    before, port = psutil.Process().children(), free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert main(["ui", "--root", str(tmp_path), "--port", str(port)]) == 2
    assert f"cannot have port {port} on 127.0.0.1" in capsys.readouterr().err
    assert psutil.Process().children() == before


def test_a_missing_root_is_told(tmp_path, capsys):
    assert main(["ui", "--root", str(tmp_path / "none")]) == 2
    assert "No results at" in capsys.readouterr().err


def test_without_anything_published_the_reports_are_named(tmp_path, capsys):
    night = tmp_path / "nightly" / "main" / "2026-01-01"
    night.mkdir(parents=True)
    (night / "report.html").touch()
    assert main(["ui", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert (night / "report.html").as_uri() in said.out
    assert "No runs are published" in said.err
