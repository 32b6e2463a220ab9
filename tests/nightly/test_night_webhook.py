"""The verdict posted to a real HTTP server: once, and never at the night's cost."""

import json
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from night_rows import date, fill, judged, nightly_spec

from indexmem.nightly.night import Nights
from indexmem.nightly.webhook import VARIABLE, notify

PAGE = "https://nights.example/2026-11-01/report.html"


@pytest.fixture
def server():
    """Collects what is posted; answers with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.posts, server.status = [], 200
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def night(tmp_path):
    spec = nightly_spec(tmp_path)
    night = Nights.of(spec).night(date(0))
    fill(night)
    judged(spec, night)
    return night


def test_a_verdict_is_posted_once(server, night, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/hook/secret")
    verdict = night.verdict()
    assert [notify(verdict, night, PAGE), notify(verdict, night, PAGE)] == [True, False]
    (post,) = server.posts
    assert post["status"] == "fine"
    assert post["text"] == f"nightly 2026-11-01: {verdict.headline} {PAGE}"
    assert post["page"] == PAGE
    assert post["verdict"]["suites"][0]["rows"] == 60
    assert notify(verdict.model_copy(update={"level": 0.5}), night, str(night.page))
    assert server.posts[-1]["text"].endswith(verdict.headline), "a path leads nowhere from a chat"


def test_a_refusal_warns_without_the_address_and_is_tried_again(server, night, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/hook/secret")
    server.status = 500
    with pytest.warns(RuntimeWarning, match=r"\(500\)") as caught:
        assert not notify(night.verdict(), night, PAGE)
    assert "secret" not in str(caught[0].message)
    server.status = 204
    assert notify(night.verdict(), night, PAGE)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/secret", "file:///etc/passwd", "nonsense secret"])
def test_an_address_that_does_not_work_warns(night, monkeypatch, address):
    monkeypatch.setenv(VARIABLE, address)
    with pytest.warns(RuntimeWarning, match=VARIABLE) as caught:
        assert not notify(night.verdict(), night, PAGE)
    assert "secret" not in str(caught[0].message)


def test_without_an_address_nothing_is_posted(night, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not notify(night.verdict(), night, PAGE)
