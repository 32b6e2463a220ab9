"""The board in a real browser: sorting, filters, hostile text inert, narrow and dark pages, nothing requested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from board_rows import CONFIG, ROW, sampled, write_kvpress, write_rows, write_store
from chrome import BINARY, Chrome, Page
from report_rows import ATTACK, HOSTILE

from indexmem.cli import main

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine: apt-get install chromium"),
]
READY = "document.documentElement.dataset.board === 'ready'"
SHOWN = "all('#p0 tbody tr').filter((row) => row.offsetParent).map((row) => keysOf.get(row))"
PWNED = "document.documentElement.dataset.pwned !== undefined"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people's stores, somebody's rows with hostile text, and results of kvpress."""
    folder = tmp_path_factory.mktemp("board")
    stores = [
        f"alice={write_store(folder / 'a', {}, ['indexer', 'snapkv'])}",
        f"bob={write_store(folder / 'b', {}, ['knorm'])}",
        str(write_kvpress(folder / "kv", {"vt": {"string_match": 71.2}})),
    ]
    hostile = {name: HOSTILE + name for name in ("model", "method", "benchmark", "build", "prompts", "who", "engine")}
    hostile |= {"device": "a\u202egnp.exe\x00", "versions": {HOSTILE: HOSTILE}, "commit": f'"{ATTACK}"'}
    stores.append(str(write_rows(folder / "rows.jsonl", sampled([1.0, 0.0] * 10, **hostile))))
    assert main(["board", *stores, "--out", str(folder / "page")]) == 0
    return folder / "page" / "index.html"


@pytest.fixture
def page(chrome: Chrome, board: Path) -> Iterator[Page]:
    yield from chrome.viewing(board, READY)


def test_means_are_shown_first_and_the_filters_choose(page: Page) -> None:
    assert {row["benchmark"] for row in page.evaluate(SHOWN)} == {"mean"}
    page.choose("[data-filter=benchmark]", "niah_single_1")
    assert {row["benchmark"] for row in page.evaluate(SHOWN)} == {"niah_single_1"}
    page.choose("[data-filter=who]", "bob")
    page.choose("[data-filter=budget]", "90%")
    assert {(row["method"], row["budget"]) for row in page.evaluate(SHOWN)} == {("knorm", "90%")}
    page.choose("[data-filter=model]", CONFIG["model"])
    assert page.evaluate("all('[data-section]').every((one) => !one.querySelector('[data-empty]').hidden)")


def test_a_section_whose_models_have_one_benchmark_is_not_empty(page: Page) -> None:
    assert page.evaluate("all('[data-section]').every((one) => one.querySelector('[data-empty]').hidden)")


def test_columns_sort_both_ways_within_their_protocol(page: Page) -> None:
    before = page.evaluate("all('[data-section]').map((one) => one.querySelectorAll('tbody tr').length)")
    for down in (True, False):
        page.click("#p0 [data-sort='4']")
        scores = [row["score"] for row in page.evaluate(SHOWN)]
        assert scores == sorted(scores, reverse=down) and len(set(scores)) > 3
        assert page.evaluate("document.querySelector('#p0 [data-sort=\\'4\\']').closest('th').ariaSort") == (
            "descending" if down else "ascending"
        )
    page.click("#p0 [data-sort='1']")
    methods = [row["method"] for row in page.evaluate(SHOWN)]
    assert methods == sorted(methods)
    assert page.evaluate("all('[data-section]').map((one) => one.querySelectorAll('tbody tr').length)") == before


def test_where_a_number_comes_from_is_one_click_away(page: Page) -> None:
    page.click("#p0 tbody tr:nth-child(2) summary")
    told = page.evaluate("document.querySelector('#p0 tbody tr:nth-child(2) .from').innerText")
    assert "4be1d0c5a3f2" in told and "torch 2.13.0" in told and "node-1" in told


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_hostile_text_is_shown_and_never_run(chrome: Chrome, board: Path, width: int, dark: bool) -> None:
    for page in chrome.viewing(board, READY, width, dark=dark):
        page.evaluate("all('details').forEach((one) => { one.open = true; })")
        assert not page.evaluate(PWNED)
        text = page.evaluate("document.body.innerText")
        assert "<img src=x onerror=" in text and "a[U+202E]gnp.exe␀" in text
        assert page.evaluate("document.querySelectorAll('img, main script, iframe').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_no_rank_crosses_a_protocol(page: Page) -> None:
    marks = page.evaluate("all('[data-section]').map((one) => one.querySelectorAll('td.winner, td.leading').length)")
    assert marks[0] > 0 and not any(marks[1:])
    assert ROW["engine"] not in page.text("#p0-title")
