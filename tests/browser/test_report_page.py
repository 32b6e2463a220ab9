"""The report in a real browser: charts drawn, viewer alive, hostile text inert, no request, no error."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from report_rows import ATTACK, METHODS, MIXED, make_history, make_retention, make_rows

from indexmem.config.schema import Experiment
from indexmem.report.html import write_report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"),
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=8000",
    "--window-size=1280,4000",
]
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
CHARTS = 6  # mean, three benchmarks, bytes, loss


@dataclass(frozen=True)
class Visit:
    """The page after its scripts ran (`dom`), and what it said on the console."""

    dom: str
    console: list[str]

    @property
    def pwned(self) -> bool:
        return re.search(r"<html[^>]*data-pwned", self.dom) is not None

    def text_of(self, element_id: str) -> str:
        inside = re.search(rf'<(\w+) id="{element_id}"[^>]*>(.*?)</\1>', self.dom, re.DOTALL)
        assert inside is not None, f"no element {element_id}"
        return html.unescape(re.sub(r"<[^>]+>", "", inside[2]))


def visit(page: Path, profile: Path) -> Visit:
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = make_rows()
    out = tmp_path_factory.mktemp("browser") / "report.html"
    return write_report(Experiment(name="paper-ruler"), rows, make_retention(rows), out, make_history())


@pytest.fixture(scope="module")
def seen(report: Path) -> Visit:
    return visit(report, report.parent / "profile")


def altered(report: Path, tmp_path: Path, addition: str, *, keep_policy: bool) -> Path:
    source = report.read_text(encoding="utf-8").replace("</body>", f"{addition}</body>")
    page = tmp_path / "altered.html"
    page.write_text(source if keep_policy else POLICY.sub("", source), encoding="utf-8")
    return page


def test_every_chart_is_drawn_without_a_complaint(seen: Visit) -> None:
    assert seen.console == []
    assert 'data-charts="drawn"' in seen.dom
    assert len(re.findall(r'<path class="js-line"', seen.dom)) >= 5 * len(METHODS)
    assert seen.dom.count('class="main-svg"') >= CHARTS


def test_the_viewer_is_filled(seen: Visit) -> None:
    assert seen.dom.count("--share:") == 1200
    assert "1,200 tokens" in seen.text_of("kept-total")
    assert seen.text_of("references") == "7000000"
    answers = seen.text_of("answers")
    assert all(method in answers for method in METHODS)
    assert answers.startswith("full cache")


def test_hostile_text_is_shown_and_never_run(seen: Visit) -> None:
    assert not seen.pwned
    assert f"</script><script>{ATTACK}</script>" in seen.text_of("answers")


def test_the_pages_policy_stops_a_script_that_got_in(report: Path, tmp_path: Path) -> None:
    injection = f'<script>{ATTACK}</script><img src="x" onerror="{ATTACK}"><img src="https://example.org/x.png">'
    stopped = visit(altered(report, tmp_path, injection, keep_policy=True), tmp_path / "a")
    assert not stopped.pwned
    assert sum("Content Security Policy" in line for line in stopped.console) >= 2
    assert visit(altered(report, tmp_path, injection, keep_policy=False), tmp_path / "b").pwned


def test_choosing_and_toggling_change_the_page(report: Path, tmp_path: Path) -> None:
    driver = """<script>
      const wait = setInterval(() => {
        if (!document.documentElement.dataset.charts) return;
        clearInterval(wait);
        const choose = (id, value) => {
          const select = document.getElementById(id);
          select.value = value;
          select.dispatchEvent(new Event("change"));
        };
        choose("pick-sample", "niah_single_2/0");
        choose("pick-method", "knorm");
        choose("pick-budget", "25%");
        const tokens = document.getElementById("tokens");
        const press = (key) => tokens.dispatchEvent(new KeyboardEvent("keydown", { key }));
        ["ArrowRight", "ArrowRight", "ArrowLeft"].forEach(press);
        document.querySelector('.legend [data-method="snapkv"]').click();
        const shown = [...document.querySelectorAll("[data-figure]")].flatMap((chart) =>
          chart.data.filter((trace) => trace.legendgroup === "snapkv").map((trace) => trace.visible));
        document.body.append(Object.assign(document.createElement("p"), { id: "shown", textContent: shown.join() }));
      }, 50);
    </script>"""
    used = visit(altered(report, tmp_path, driver, keep_policy=False), tmp_path / "profile")
    assert re.search(r'<tr class="chosen"><th scope="row">knorm</th>', used.dom)
    assert used.text_of("readout").startswith('Token 1, " The": kept by 100% of heads')
    assert set(used.text_of("shown").split(",")) == {"false"}
    assert 'aria-pressed="false" data-method="snapkv"' in used.dom


def test_budgets_of_several_kinds_have_charts_and_a_viewer(tmp_path: Path) -> None:
    rows = make_rows(budgets=MIXED, samples=4)
    out = tmp_path / "report.html"
    seen = visit(write_report(Experiment(name="mixed"), rows, make_retention(rows), out), tmp_path / "profile")
    assert seen.console == []
    assert 'data-charts="drawn"' in seen.dom
    assert seen.dom.count('class="main-svg"') >= 3 * 4 + 1  # mean and three benchmarks of each kind, and costs
    assert seen.text_of("pick-budget") == "".join(map(str, MIXED))
    assert all(method in seen.text_of("answers") for method in METHODS)
