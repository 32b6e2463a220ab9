"""Index and live page in a real browser: drawn, kept fresh, honest about dead drivers, and deaf to hostile text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import CHROMIUM, visit
from live_runs import ATTACK, GRID, METHODS, TRAINING, fill, write_run
from report_rows import make_retention, make_rows

from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.serve import handler
from indexmem.serve.pages import Pages
from indexmem.serve.server import ReportServer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"),
]
SIZES = {"desktop": "1280,2400", "phone": "500,3200"}
MEASURE = """<script>addEventListener("load", () => {
  const page = document.documentElement;
  page.dataset.overflow = page.scrollWidth - page.clientWidth;
  page.dataset.colour = getComputedStyle(document.body).backgroundColor;
  page.dataset.curve = Math.round(document.querySelector("polyline")?.getBoundingClientRect().width ?? 0);
});</script>"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def server(root: Path):
    with ReportServer(root, 0) as running:
        yield running


def after_each_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Calls `act` with the number of times that the live page was given out, each time after it was."""
    looks = []
    give = Pages.live

    def live(self: Pages, file: str) -> str | None:
        page = give(self, file)
        looks.append(file)
        act(len(looks))
        return page

    monkeypatch.setattr(Pages, "live", live)


def test_pages_are_complete_without_a_complaint_or_a_word_run_as_code(server, tmp_path):
    pages = {path: visit(f"{server.url}/{path}", tmp_path / "profile") for path in ("", "live/smoke.grid")}
    for seen in pages.values():
        assert seen.console == []
        assert not seen.pwned
        assert re.search(r'<p id="lost"[^>]* hidden', seen.dom)
    assert pages[""].dom.count("<progress") == 5
    assert "W" * 200 in pages["live/smoke.grid"].text_of("scores")
    grid = pages["live/smoke.grid"]
    assert grid.dom.count("<polyline") == len(METHODS)
    assert grid.text_of("counted").strip() == "1,204 of 4,800 rows (25%)"
    assert ATTACK in grid.text_of("failures")
    assert "שגיאה ValueError (file.py)" in grid.text_of("failures")
    assert grid.text_of("note") == "waiting for 3 cells"


def test_what_the_driver_writes_appears_by_itself(root, server, tmp_path, monkeypatch):
    done = replace(GRID, done=4800, note="", scores=None)
    after_each_look(monkeypatch, lambda look: look == 2 and write_run(root, "smoke", done, state="done"))
    seen = visit(f"{server.url}/live/smoke.grid", tmp_path / "profile")
    assert seen.text_of("counted").strip() == "4,800 of 4,800 rows (100%)"
    assert '<span class="state done">' in seen.dom
    assert "<title>100% smoke grid</title>" in seen.dom
    assert 'id="note"' not in seen.dom
    assert seen.console == []


def test_a_driver_that_died_shows_as_stale(root, server, tmp_path, monkeypatch):
    after_each_look(monkeypatch, lambda look: look == 1 and write_run(root, "smoke", GRID, pid=2**22 + 1))
    seen = visit(f"{server.url}/live/smoke.grid", tmp_path / "profile")
    assert '<span class="state stale">' in seen.dom
    assert "its process is gone" in seen.text_of("stale")


def test_a_server_that_ended_is_not_mistaken_for_a_run_that_stands_still(root, tmp_path, monkeypatch):
    server = ReportServer(root, 0)

    def fail(look: int) -> None:
        if look > 1:
            raise ConnectionAbortedError

    after_each_look(monkeypatch, fail)
    with server:
        seen = visit(f"{server.url}/live/smoke.grid", tmp_path / "profile")
    assert re.search(r'<p id="lost"(?![^>]* hidden)', seen.dom)
    assert seen.text_of("counted").strip() == "1,204 of 4,800 rows (25%)", "what was known stays"


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_it_fits_the_window_and_follows_the_colour_scheme(server, tmp_path, monkeypatch, size, scheme):
    monkeypatch.setattr(handler, "OWN_POLICY", "default-src 'self' 'unsafe-inline' data:")
    give = Pages.live
    monkeypatch.setattr(Pages, "live", lambda self, file: give(self, file).replace("</head>", f"{MEASURE}</head>"))
    setting = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    seen = visit(f"{server.url}/live/smoke.grid", tmp_path / "profile", setting, size=SIZES[size], milliseconds=1000)
    measured = dict(re.findall(r'data-(\w+)="([^"]*)"', seen.dom.split(">", 2)[1]))
    assert measured["overflow"] == "0"
    assert measured["colour"] == ("rgb(16, 19, 24)" if scheme == "dark" else "rgb(246, 247, 249)")
    assert int(measured["curve"]) > 250


def test_a_report_is_drawn_when_it_is_served(root, server, tmp_path):
    rows = make_rows(samples=4)
    write_report(Experiment(name="smoke"), rows, make_retention(rows), root / "reports" / "smoke.html")
    seen = visit(f"{server.url}/reports/smoke.html", tmp_path / "profile")
    assert 'data-charts="drawn"' in seen.dom
    assert seen.console == []


def test_a_report_cannot_read_the_others(root, server, tmp_path):
    theft = """<!doctype html><p id="got">nothing</p><script>
    fetch("/live/smoke.grid.json").then((answer) => answer.text(), () => "refused").then((text) => {
      document.getElementById("got").textContent = text;
    });</script>"""
    (root / "reports" / "evil.html").write_text(theft)
    seen = visit(f"{server.url}/reports/evil.html", tmp_path / "profile")
    assert seen.text_of("got") == "refused"


def test_a_training_shows_its_curve(server, tmp_path):
    seen = visit(f"{server.url}/live/smoke.training", tmp_path / "profile", milliseconds=1000)
    assert seen.dom.count("<polyline") == len(TRAINING.curves)
    assert seen.console == []
