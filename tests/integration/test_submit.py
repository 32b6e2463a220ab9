"""Jobs on a head that computes nothing and a worker on a machine of its own, where one can be had.

Sent as documented: by `indexmem submit` from any folder, and by Ray's own command from the repository.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import mlflow
import pytest
import requests
import yaml
from grids import remaining
from head_node import can_have_a_second_machine, head_node, second_machine, wire
from ray.job_submission import JobStatus
from waiting import wait_until

from indexmem.cli import main
from indexmem.cluster import fetch, job_server
from indexmem.cluster.job import PACKAGE, Job
from indexmem.cluster.job_server import follow, job_exit_code
from indexmem.config.load import load
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.provenance import provenance

pytestmark = pytest.mark.ray

REPOSITORY = Path(__file__).parents[2]
COMMIT = "c0ffee" * 6 + "c0ff"
OVERRIDES = ["grid.methods=[full, knorm]", "grid.benchmarks=[niah_single_1]", "grid.samples=2", "run.root=null"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    logs = tmp_path_factory.mktemp("nodes")
    if not can_have_a_second_machine():
        with head_node(logs / "head.log") as head:
            yield takes_jobs(head.jobs)
        return
    with (
        wire() as (namespace, here, there),
        head_node(logs / "head.log", ip=here, cpus=0) as head,
        second_machine(logs / "worker.log", head, namespace, there),
    ):
        yield takes_jobs(head.jobs)


def takes_jobs(address: str) -> str:
    """The address, once a first job got through."""

    def first():
        try:
            return job_server.start_attempt(job_server.job_client(address), Job("first", "true", {}), {}, "join")
        except UserError:
            return None

    assert wait_until(first, 240), "no node takes jobs"
    return address


@pytest.fixture
def client(address):
    return job_server.job_client(address)


def ended(client, submission: str) -> JobStatus:
    wait_until(lambda: client.get_job_status(submission).is_terminal(), 300)
    return client.get_job_status(submission)


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


def outside(folder, *arguments: str) -> subprocess.Popen:
    """The installed command, in a folder that is no repository."""
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "indexmem", "submit", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_job_from_outside_the_repository_outlives_the_process_that_sent_it(
    spec_file, tmp_path, address, client, monkeypatch, capfd
):
    laptop, home = tmp_path / "laptop", tmp_path / "home"
    laptop.mkdir()
    spec = yaml.safe_load(spec_file.read_text())
    spec["grid"] |= {
        "methods": ["full", "knorm"],
        "benchmarks": ["niah_single_1"],
        "samples": 4,
        "haystack": "text.txt",
    }
    spec |= {"run": {"wait_for_nodes": 60}, "tracking": {"enabled": False}}
    (laptop / "base.yaml").write_text(yaml.safe_dump(spec))
    (laptop / "child.yaml").write_text("extends: base.yaml\nname: far\n")
    (laptop / "text.txt").write_text((tmp_path / "text.txt").read_text())
    words = ["eval", "child.yaml", "grid.samples=3", "--address", address]
    words += ["--env", f"INDEXMEM_HOME={home}", "--env", "HF_HUB_OFFLINE=1"]
    sender = outside(laptop, *words, "--follow")
    submission = sender.stdout.readline().strip()
    assert submission.startswith("eval-far-"), sender.communicate()
    assert submission.endswith("-1")
    assert sender.stdout.readline(), "nothing of the job's log arrived"
    sender.send_signal(signal.SIGKILL)
    sender.communicate()
    (tmp_path / "text.txt").unlink()
    for name in ("base.yaml", "child.yaml", "text.txt"):
        (laptop / name).rename(laptop / f"gone-{name}")

    assert ended(client, submission) == JobStatus.SUCCEEDED, client.get_job_logs(submission)
    assert f"Report: {home / 'runs' / 'reports' / 'far.html'}" in client.get_job_logs(submission)
    monkeypatch.setenv("INDEXMEM_HOME", str(home))
    monkeypatch.chdir(laptop)
    for name in ("base.yaml", "child.yaml", "text.txt"):
        (laptop / f"gone-{name}").rename(laptop / name)
    grid = plan(load("child.yaml", ["grid.samples=3"]))
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids).to_pylist()
    assert len(rows) == grid.row_count == 3 * 3
    assert {row["git_commit"] for row in rows} == {provenance()["git_commit"]}

    # What it left comes home, and is then a run root of its own.
    there = ["--address", address, "--env", f"INDEXMEM_HOME={home}", "--env", "HF_HUB_OFFLINE=1"]
    assert main(["fetch", "child.yaml", "grid.samples=3", *there, "--rows"]) == 0
    fetched = laptop / "fetched"
    page = capfd.readouterr().out.splitlines()[-1].removeprefix("Report: ")
    assert urllib.request.urlopen(page).read() == (home / "runs" / "reports" / "far.html").read_bytes()
    monkeypatch.setenv("INDEXMEM_HOME", str(tmp_path / "nothing"))
    here = plan(load("child.yaml", ["grid.samples=3", f"run.root={fetched}"]))
    assert here.rows().num_rows == 9 and remaining(here) == []
    assert {path.name for path in (fetched / "reports" / "far").iterdir()} >= {"scores.csv"}


def offering(folder: Path) -> Job:
    """A job that offers the files of a folder."""
    script = (
        "import pathlib, sys; from indexmem.cluster.offer import offer; folder = pathlib.Path(sys.argv[1]);"
        "offer({str(f.relative_to(folder)): f for f in folder.rglob('*') if f.is_file()})"
    )
    return Job(f"probe-offer-{folder.name}", shlex.join(["python", "-c", script, str(folder)]), {})


def test_files_come_whole_over_a_port_that_breaks(client, address, tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "deep").mkdir(parents=True)
    contents = {"a": os.urandom(3 * 2**20), "deep/b": b"", "deep/c": "é\r\n\x1b[0m".encode()}
    for name, content in contents.items():
        (there / name).write_bytes(content)
    here.mkdir()
    (here / "a").write_bytes(b"an older one")
    environment = {"py_modules": [str(PACKAGE)]}
    submission = job_server.start_attempt(client, offering(there), environment, "join").submission
    monkeypatch.setattr(fetch, "WAIT_SECONDS", 0.01)
    with breaking(address, after=2**20) as (port, broken):
        offer = fetch.Offer.of_job(job_server.job_client(f"http://127.0.0.1:{port}"), submission)
        seen = []
        done = fetch.fetch_files(offer, here, lambda text: seen.append((here / "a").read_bytes()))
    assert broken, "nothing was broken"
    assert {str(path.relative_to(here)): path.read_bytes() for path in done.all} == contents
    assert seen[0] == b"an older one", "the old file stays until the new one is whole"
    assert [path.name for path in done.replaced] == ["a"]
    assert {path.name for path in here.rglob("*")} == {"a", "b", "c", "deep"}, "no drafts are left"

    again = fetch.fetch_files(fetch.Offer(client, offer.node, offer.folder), here, print)
    assert len(again.kept) == 3 and not again.new and not again.replaced

    # What has changed there since is not taken for what was offered.
    (there / "a").write_bytes(b"written anew")
    (here / "a").unlink()
    with pytest.raises(UserError, match="a could not be fetched: not what the cluster offered"):
        fetch.fetch_files(fetch.Offer(client, offer.node, offer.folder), here, print)
    assert not (here / "a").exists()

    client.stop_job(submission)
    assert ended(client, submission) == JobStatus.STOPPED
    with pytest.raises(requests.HTTPError):
        list(fetch.Offer(client, offer.node, offer.folder).read(fetch.LIST))


@contextmanager
def breaking(address: str, after: int):
    """A port that leads to `address`, as a forwarded one does, and breaks the first answer longer than `after`."""
    host, port = address.removeprefix("http://").split(":")
    broken: list[int] = []

    def pump(source, sink, counted):
        total = 0
        with suppress(OSError):
            while piece := source.recv(2**16):
                total += len(piece)
                if counted and total > after and not broken:
                    broken.append(total)
                    break
                sink.sendall(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve():
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)))
                threading.Thread(target=pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=pump, args=(far, near, True), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], broken


def test_a_job_that_offers_nothing_is_a_sentence(client):
    job = Job("probe-none-0123", "echo 'error: There is no report'; exit 2", {})
    submission = job_server.start_attempt(client, job, {}, "join").submission
    with pytest.raises(UserError, match=r"found nothing to bring \(exit code 2\):[\s\S]*error: There is no report"):
        fetch.Offer.of_job(client, submission)


def test_equal_jobs_run_once_and_ended_ones_again(client):
    job = Job("probe-one-0123", "sleep 600", {"verb": "probe"})
    attempts, refusals = [], []

    def send(if_running):
        try:
            attempts.append(job_server.start_attempt(client, job, {}, if_running))
        except UserError as error:
            refusals.append(str(error))

    senders = [threading.Thread(target=send, args=("join",)) for _ in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert [attempt.submission for attempt in attempts] == ["probe-one-0123-1"] * 4
    assert [attempt.new for attempt in attempts].count(True) == 1
    send("refuse")
    assert refusals == ["probe-one-0123-1 is under way with the same spec. --if-running join follows it instead."]
    # Whose key merely begins like it is another job.
    assert job_server.attempt_under_way(client, Job("probe-one", "true", {})) is None

    wait_until(lambda: client.get_job_status("probe-one-0123-1") == JobStatus.RUNNING)
    client.stop_job("probe-one-0123-1")
    assert ended(client, "probe-one-0123-1") == JobStatus.STOPPED
    assert job_exit_code(client.get_job_info("probe-one-0123-1")) == 143, "as an evaluation that SIGTERM ended"
    again = job_server.start_attempt(client, Job(job.key, "exit 3", {}), {}, "refuse")
    assert again == job_server.Attempt("probe-one-0123-2", new=True)
    assert ended(client, again.submission) == JobStatus.FAILED
    assert job_exit_code(client.get_job_info(again.submission)) == 3
    assert job_server.start_attempt(client, Job(job.key, "true", {}), {}, "join").submission == "probe-one-0123-3"


def test_a_log_is_followed_to_its_end_even_when_the_server_is_away_for_a_moment(client, monkeypatch):
    job = Job("probe-log-0123", "for i in 1 2 3; do echo line $i; sleep 2; done; exit 1", {})
    submission = job_server.start_attempt(client, job, {}, "join").submission
    look, looks = client.get_job_logs, []

    def breaks(name):
        looks.append(name)
        if len(looks) == 2:
            raise RuntimeError("the proxy had enough")
        return look(name)

    monkeypatch.setattr(client, "get_job_logs", breaks)
    written = []
    details = follow(client, submission, written.append)
    assert job_exit_code(details) == 1
    assert "".join(written) == look(submission)
    assert len([text for text in written if text]) > 1, "it comes while the job runs"


WATCH = """
import signal, sys
from indexmem.commands.submit import follow_job
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in a background of a shell
sys.exit(follow_job(sys.argv[1], sys.argv[2]))
"""


def test_ctrl_c_while_following_leaves_the_job_alone_and_says_so(client, address):
    submission = job_server.start_attempt(
        client, Job("probe-int-0123", "echo begun; sleep 600", {}), {}, "join"
    ).submission
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, address, submission],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert wait_until(lambda: "begun" in watcher.stdout.readline())
    watcher.send_signal(signal.SIGINT)
    _, said = watcher.communicate(timeout=120)
    assert watcher.returncode == 130
    assert f"{submission} goes on without this terminal" in said
    assert client.get_job_status(submission) == JobStatus.RUNNING
    client.stop_job(submission)
    assert ended(client, submission) == JobStatus.STOPPED


def test_mistakes_are_found_before_anything_is_sent(spec_file, capsys, client, address):
    before = len(client.list_jobs())
    for words, complaint in (
        (["eval", str(spec_file), "grid.ratio=[1]"], "unknown key 'grid.ratio'. Did you mean 'ratios'?"),
        (["eval", str(spec_file), "grid.methods=[snapvk]"], "Unknown method 'snapvk'. Did you mean 'snapkv'?"),
        (["eval", str(spec_file), "run.root=here"], "would lie in the job's own folder"),
        (["sweep", str(spec_file)], "sweep.axes is empty"),
        (["sweep", str(spec_file), "sweep.axes.indexer.dimm=[8]"], "indexer.dim"),
        (["eval", str(spec_file), "--env", "HOME"], "not of the form NAME=VALUE"),
    ):
        assert main(["submit", *words, "--address", address]) == 2
        assert complaint in capsys.readouterr().err
    assert len(client.list_jobs()) == before
    assert main(["submit", "distill", str(spec_file), "--address", "http://127.0.0.1:1"]) == 2
    assert "No job server at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_dry_run_shows_what_would_travel_and_needs_no_cluster(spec_file, capsys):
    assert main(["submit", "eval", str(spec_file), "--dry-run", "--env", "A=b"]) == 0
    said = capsys.readouterr().err
    assert "python -m indexmem eval spec.yaml" in said
    assert "text.txt as files/" in said
    assert "'A': 'b'" in said


def test_rays_own_command_runs_a_script_with_the_code_it_brought(spec_file, tmp_path, client, monkeypatch):
    code = copy_of_repository(tmp_path / "repository")
    home = tmp_path / "home"
    shipped = {
        "working_dir": str(code),
        "py_modules": [str(code / "platform" / "indexmem")],
        "env_vars": {"INDEXMEM_HOME": str(home), "INDEXMEM_GIT_COMMIT": COMMIT, "HF_HUB_OFFLINE": "1"},
    }
    entrypoint = shlex.join(["python", "jobs/eval_grid.py", str(spec_file), *OVERRIDES])
    client.submit_job(submission_id="grid-1", entrypoint=entrypoint, runtime_env=shipped)
    assert ended(client, "grid-1") == JobStatus.SUCCEEDED, client.get_job_logs("grid-1")
    logs, info = client.get_job_logs("grid-1"), client.get_job_info("grid-1")
    client.submit_job(submission_id="grid-2", entrypoint=f"{entrypoint} grid.ratio=[1]", runtime_env=shipped)
    assert ended(client, "grid-2") == JobStatus.FAILED
    mistake = client.get_job_logs("grid-2")
    assert client.get_job_info("grid-2").driver_exit_code == 2

    assert "full cache, nothing evicted" in logs
    assert f"Report: {home / 'runs' / 'reports' / 'tiny.html'}" in logs
    assert info.driver_info is not None, "the driver did not connect to the cluster that it was submitted to"
    assert "unknown key 'grid.ratio'. Did you mean 'ratios'?" in mistake

    monkeypatch.setenv("INDEXMEM_HOME", str(home))
    grid = plan(load(spec_file, OVERRIDES))
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids).to_pylist()
    assert len(rows) == grid.row_count == 3 * 2
    assert remaining(grid) == []
    # The checkout's own commit would mean that the installed package ran, not the one that was shipped.
    assert {row["git_commit"] for row in rows} == {COMMIT}
    assert all(json.loads(row["versions"])["ray"] for row in rows)
    assert (home / "runs" / "reports" / "tiny.html").is_file()

    mirror = mlflow.MlflowClient(f"sqlite:///{home}/runs/mlflow.db")
    runs = mirror.search_runs([mirror.get_experiment_by_name("indexmem/eval").experiment_id])
    assert {run.data.tags["ray.submission_id"] for run in runs} == {"grid-1"}
