"""The report server over real HTTP: what it gives, with which headers, and that it gives nothing else."""

import http.client
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from live_runs import GRID, fill, write_run

from indexmem.errors import UserError
from indexmem.live.status import Curve, Scores
from indexmem.serve.handler import FILE_POLICY, OWN_POLICY
from indexmem.serve.server import ReportServer


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "runs"
    fill(folder)
    (folder.parent / "outside.html").write_text("outside")
    (folder / "reports" / "link.html").symlink_to(folder.parent / "outside.html")
    (folder / "reports" / "up").symlink_to(folder.parent)
    return folder


@pytest.fixture(scope="module")
def server(root):
    with ReportServer(root, 0) as running:
        yield running


def ask(server: ReportServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body, of exactly this path: clients would tidy it up."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode(errors="replace")
    finally:
        connection.close()


GIVEN = {
    "/": ("text/html; charset=utf-8", "Runs and reports"),
    "/?x=1": ("text/html; charset=utf-8", "Runs and reports"),
    "/assets/page.css": ("text/css; charset=utf-8", "progress"),
    "/assets/refresh.js": ("text/javascript; charset=utf-8", "DOMParser"),
    "/live/smoke.grid": ("text/html; charset=utf-8", "1,204 of 4,800 rows"),
    "/live/smoke.training": ("text/html; charset=utf-8", "loss indexer"),
    "/live/smoke.grid.json": ("application/json", '"total":4800'),
    "/reports/smoke.html": ("text/html; charset=utf-8", "The report"),
    "/reports/paper/table.csv": ("text/csv; charset=utf-8", "method,score"),
    "/nightly/main/2026-01-02/report.html": ("text/html; charset=utf-8", "night"),
}


@pytest.mark.parametrize("path", GIVEN)
def test_what_there_is_is_given_with_its_type(server, path):
    kind, text = GIVEN[path]
    status, headers, body = ask(server, path)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert text in body
    assert headers["X-Content-Type-Options"] == "nosniff"
    ours = path[1:].split("/")[0] in ("", "?x=1", "assets") or (path.startswith("/live") and ".json" not in path)
    assert headers["Content-Security-Policy"] == (OWN_POLICY if ours else FILE_POLICY)
    status, again, body = ask(server, path, "HEAD")
    assert (status, body) == (200, "")
    assert path in ("/", "/?x=1") or "live" in path or again["Content-Length"] == headers["Content-Length"]


REFUSED = [
    "/reports",
    "/reports/",
    "/reports/paper",
    "/reports/paper/",
    "/reports/nothing.html",
    "/reports/.hidden.html",
    "/reports/link.html",
    "/reports/up/outside.html",
    "/live",
    "/live/",
    "/live/nothing",
    "/live/nothing.json",
    "/nightly/main/2026-01-02/record.json",
    "/nightly/main/2026-01-02/../../../mlflow.secret",
    "/mlflow.secret",
    "/reports/../mlflow.secret",
    "/reports/..%2fmlflow.secret",
    "/reports/%2e%2e/mlflow.secret",
    "/reports/..%5c..%5cmlflow.secret",
    "/reports//etc/passwd",
    "/reports/%2fetc%2fpasswd",
    "/live/../reports/smoke.html",
    "/live/..%2freports%2fsmoke.html",
    "/live/smoke.grid%00.json",
    "/assets/../pages.py",
    "/assets/%2e%2e%2fpages.py",
    "/reports/smoke.html/",
    "/" + "a" * 3000,
]


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path[:60])
def test_all_else_is_not_found_and_says_nothing(server, path):
    status, headers, body = ask(server, path)
    assert status == 404
    assert headers["Content-Security-Policy"] == OWN_POLICY
    assert not any(secret in body for secret in ("not for the web", "outside", "root:", "import "))


def test_it_reads_only(server):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(server, "/", method)[0] == 501


def test_a_site_that_points_its_name_here_gets_nothing(server):
    for host in ("evil.example:5001", "127.0.0.1.evil.example:80", "", "localhost.evil.example"):
        assert ask(server, "/reports/smoke.html", Host=host)[0] == 403, host
    for host in (
        "localhost:8080",
        "LOCALHOST:1",
        "localhost",
        "127.0.0.1:5001",
    ):  # also through a tunnel, under another port
        assert ask(server, "/", Host=host)[0] == 200, host


def test_the_index_lists_runs_reports_and_nights(server):
    _, _, body = ask(server, "/")
    order = [body.index(f"/live/{name}") for name in ("smoke.training", "smoke.grid", "broken.grid")]
    assert order == sorted(order), "running ones first"
    for text in (
        "25%",
        "3 failed",
        "about 5 min left",
        "stale",
        "done",
        "2 worse",
        "no regression",
        "smoke.html",
        " B<",
    ):
        assert text in body
    assert ".hidden" not in body
    assert body.index("2026-01-02") < body.index("2026-01-01")


def test_hostile_text_is_escaped(server):
    for path in ("/live/smoke.grid", "/live/broken.grid", "/"):
        _, _, body = ask(server, path)
        assert "<img src=x" not in body
        assert body.count("<script") == 1
        assert "\u202e" not in body
        assert "W" * 1000 not in body


def test_an_empty_root_has_an_index(tmp_path):
    with ReportServer(tmp_path, 0) as server:
        status, _, body = ask(server, "/")
    assert status == 200
    assert body.count("None yet") == 2


def test_odd_numbers_do_not_break_a_page(tmp_path):
    odd = replace(GRID, total=0, done=0, rate=0.0, eta_seconds=0.0, scores=Scores((), ()), curves=(Curve("x", ()),))
    write_run(tmp_path, "odd", odd, started=1e300)
    write_run(tmp_path, "flat", replace(GRID, curves=(Curve("x", ((1, 0.0), (2, 0.0))),), scores=None))
    with ReportServer(tmp_path, 0) as server:
        assert [ask(server, path)[0] for path in ("/", "/live/odd.grid", "/live/flat.grid")] == [200] * 3


def test_a_taken_port_is_an_error_that_says_so():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=f"port {other.getsockname()[1]} on 127.0.0.1: .*in use"):
            ReportServer(Path(), other.getsockname()[1])
    with pytest.raises(UserError, match="99999"):
        ReportServer(Path(), 99999)


def test_many_visitors_at_once(server):
    answers = []
    visitors = [threading.Thread(target=lambda: answers.append(ask(server, "/live/smoke.grid")[0])) for _ in range(12)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert answers == [200] * 12


def test_it_listens_on_this_machine_alone(server):
    port = int(server.url.rpartition(":")[2])
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}:
        if not address.startswith("127."):
            with socket.socket() as probe:
                assert probe.connect_ex((address, port)) != 0
    assert server.url.startswith("http://127.0.0.1:")
