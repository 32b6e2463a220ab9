"""What pages decide, in a browser: cost in verdict and cells, one look a method, addresses that restore the view."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from board_rows import write_store
from chrome import BINARY, Chrome
from report_rows import METHODS, make_retention, make_row, make_rows

from indexmem.cli import main
from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.report.link import fragment
from indexmem.report.palette import style
from indexmem.report.shelf import page_path, write_index
from indexmem.results.schema import RETENTION_SCHEMA, ROW_SCHEMA

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine: apt-get install chromium"),
]
SETTLED = "document.documentElement.dataset.charts && document.documentElement.dataset.samples"
RESTORED = f"{SETTLED} && document.documentElement.dataset.restored"
READY = "document.documentElement.dataset.board === 'ready'"
NONE_KEPT = RETENTION_SCHEMA.empty_table()


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """'memory' answers more than 'plain' at every ratio, and holds twice the bytes: at equal bytes it is behind."""
    rows = [make_row("full", 0.0, "b", i, 1.0) for i in range(40)]
    for ratio, right in ((0.5, 40), (0.75, 34), (0.9, 20)):
        rows += [make_row("plain", ratio, "b", i, float(i < right), score_seconds=0.02) for i in range(40)]
        for i in range(40):
            row = make_row("memory", ratio, "b", i, float(i < min(40, right + 8)), score_seconds=0.3)
            rows.append(row | {"memory_bytes": row["kv_bytes"]})
    table = ROW_SCHEMA.empty_table().from_pylist(rows, schema=ROW_SCHEMA)
    return write_report(Experiment(), table, NONE_KEPT, tmp_path_factory.mktemp("unequal") / "report.html")


def test_cost_stands_in_verdict_and_cells_and_a_second_verdict_is_at_equal_bytes(chrome: Chrome, unequal: Path) -> None:
    for page in chrome.viewing(unequal, SETTLED):
        last = "#verdict .overall .findings li:last-child"
        assert "memory wins" in page.text(f"{last} h3")
        assert re.search(r"Holds 20\.\d% of the full cache's bytes, 300 ms to score", page.text(f"{last} p"))
        assert re.search(r"At \d+\.\d% of the bytes for all, interpolated: .*plain", page.text(f"{last} .equal"))
        assert "At equal bytes memory does not lead at" in page.text("#verdict .overall .headline")
        assert "Best trades. No other cell has both" in page.text("#verdict .overall")
        cost = "[data-kind=overview] tr[data-method={}] td:last-child small:last-child"
        assert page.text(cost.format("plain")).strip() == "10.0% · 20 ms"
        assert re.fullmatch(r"20\.\d% · 300 ms", page.text(cost.format("memory")).strip())
        coloured = "document.querySelector('{}').classList.contains('costly')"
        assert page.evaluate(coloured.format(cost.format("memory")))
        assert not page.evaluate(coloured.format(cost.format("plain")))
        page.choose("#filter-benchmark", "b")
        page.until("!document.querySelector('[data-kind=overview] .missing')")
        assert page.text(cost.format("plain")).strip() == "10.0% · 20 ms", "in a filtered table, too"


def test_a_method_looks_the_same_on_every_page(chrome: Chrome, report: Path, tmp_path: Path) -> None:
    """In a report of all methods, in one of few, and on the board."""
    few = make_rows(("knorm", "snapkv", "indexmem"), samples=2, failures=0)
    line = """Object.fromEntries(charts[0].data.filter((trace) => trace.mode !== 'text' && trace.legendgroup)
      .map((trace) => [trace.legendgroup, [trace.line.color, trace.marker.symbol, trace.line.dash]]))"""
    looks = []
    for path in (report, write_report(Experiment(), few, NONE_KEPT, tmp_path / "few.html")):
        for page in chrome.viewing(path, SETTLED):
            page.evaluate("draw(charts[0])")
            looks.append(page.evaluate(line))
            swatch = page.evaluate("document.querySelector('[data-toggle=snapkv] path').getAttribute('stroke')")
            assert swatch == style("snapkv").color
    every, some = looks
    assert set(every) == set(METHODS)
    assert some == {method: every[method] for method in some}
    assert main(["board", str(write_store(tmp_path / "store", {}, ["snapkv"])), "--out", str(tmp_path / "board")]) == 0
    for page in chrome.viewing(tmp_path / "board" / "index.html", READY):
        assert style("snapkv").color in page.evaluate("document.body.innerHTML")


def test_an_address_restores_filters_and_the_samples_of_a_cell(chrome: Chrome, report: Path) -> None:
    shown = "Object.entries(see).filter(([, select]) => select).map(([name, select]) => `${name}=${select.value}`)"
    for page in chrome.viewing(report, SETTLED):
        page.choose("#filter-benchmark", "niah_single_1")
        page.click("#curves [data-toggle='random']")
        page.click(".by-task [data-method='knorm'][data-benchmark='niah_single_1']")
        page.until("document.querySelector('#see-said').textContent.startsWith('knorm')")
        page.until("location.hash.startsWith('#samples&on=niah_single_1&hide=random')")
        page.choose("#see-order", "id")
        page.until("location.hash.includes('order=id')")
        wanted, address = page.evaluate(shown), page.evaluate("location.hash")
        target = page.evaluate("all('#see-list .link').at(-1).hash")
    for page in chrome.viewing(report, RESTORED, fragment=address):
        assert page.evaluate(shown) == wanted
        assert page.evaluate("benchmarkFilter.value") == "niah_single_1"
        assert page.evaluate("all('tr[data-method=random]').every((row) => row.hidden)")
        assert page.text("#verdict .by-benchmark .headline").startswith("On niah_single_1: ")
        assert page.evaluate("location.hash") == address
        assert page.evaluate("scrollY > 500")
        page.evaluate(f"location.hash = {target!r}")  # another address, typed into the same page
        page.until(f"document.documentElement.dataset.restored === {target!r}")
        assert page.text(".linked h3") in target.replace("%2F", "/")


def test_an_address_restores_two_methods_beside_each_other(chrome: Chrome, report: Path) -> None:
    asked = {"sample": "niah_single_1/0", "method": "knorm", "budget": "75%", "against": "snapkv"}
    address = fragment("kept", **asked, **{"against-budget": "50%"})
    for page in chrome.viewing(report, RESTORED, fragment=address):
        chosen = "panes.map((pane) => [pane.method.value, pane.budget.value])"
        assert page.evaluate(chosen) == [["knorm", "75%"], ["snapkv", "50%"]]
        assert page.evaluate("example.id") == "niah_single_1/0"
        page.choose("#left-method", "indexer")
        page.until("location.hash.includes('method=indexer')")
        again = page.evaluate("location.hash")
    for page in chrome.viewing(report, RESTORED, fragment=again):
        assert page.evaluate(chosen) == [["indexer", "75%"], ["snapkv", "50%"]]


@pytest.mark.parametrize(
    "address",
    [
        "#samples&method=nobody&budget=1",
        "#kept&sample=none",
        "#nowhere&x=1",
        "#verdict&on=%3Cimg%20src%3Dx%3E&hide=%00",
    ],
)
def test_an_address_that_leads_nowhere_opens_the_report(chrome: Chrome, report: Path, address: str) -> None:
    for page in chrome.viewing(report, SETTLED, fragment=address):
        page.until("document.querySelector('#see-list li')")
        assert page.evaluate("document.querySelectorAll('main img').length") == 0


def test_the_index_leads_to_both_of_two_grids_of_one_name(chrome: Chrome, tmp_path: Path) -> None:
    for of, methods in (("aaaa1111", ("knorm", "snapkv")), ("bbbb2222", ("knorm", "<img src=x>"))):
        rows = make_rows(methods, samples=2, failures=0)
        kept = make_retention(rows, 60)
        write_report(Experiment(name="ruler"), rows, kept, page_path(tmp_path, "ruler", of), of=of)
    for page in chrome.viewing(write_index(tmp_path), "document.links.length === 2"):
        links = page.evaluate("[...document.links].map((link) => link.getAttribute('href'))")
        assert sorted(links) == ["ruler-bbbb22.html", "ruler.html"]
        assert "<img src=x>" in page.text("main")
        assert page.evaluate("document.querySelectorAll('main img').length") == 0
    for name, method in (("ruler.html", "snapkv"), ("ruler-bbbb22.html", "<img src=x>")):
        for page in chrome.viewing(tmp_path / name, SETTLED):
            assert method in page.text("#verdict")
