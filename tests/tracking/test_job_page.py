"""The page that a submitted job is sent to: found where the server answers, never waited for."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from indexmem.tracking.links import job_page


class Experiments(BaseHTTPRequestHandler):
    """What MLflow's server says of the experiment indexmem/eval, with the id 7, and of others."""

    def do_GET(self) -> None:
        (name,) = parse_qs(urlsplit(self.path).query)["experiment_name"]
        known = name == "indexmem/eval"
        found = {"experiment": {"experiment_id": "7", "name": name, "lifecycle_stage": "active"}}
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found if known else {"error_code": "RESOURCE_DOES_NOT_EXIST"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def uri() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Experiments)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_page_searches_for_the_tag_that_the_runs_will_carry(uri: str) -> None:
    page = job_page(uri, "indexmem/eval", "eval-smoke-0123-1")
    assert page is not None
    assert page.startswith(f"{uri}/#/experiments/7?searchFilter=")
    assert unquote(page.partition("searchFilter=")[2]) == "tags.`ray.submission_id` = 'eval-smoke-0123-1'"


def test_without_an_experiment_all_are_shown_and_without_a_server_none(uri: str) -> None:
    assert job_page(uri, "indexmem/distill", "distill-smoke-0123-1") == f"{uri}/#/experiments"
    assert job_page("sqlite:////data/mlflow.db", "indexmem/eval", "eval-smoke-0123-1") is None


def test_a_server_out_of_reach_is_not_waited_for_and_its_password_not_shown() -> None:
    started = time.monotonic()
    assert job_page("http://me:word@127.0.0.1:1", "indexmem/eval", "x-1") == "http://127.0.0.1:1/#/experiments"
    assert time.monotonic() - started < 5
