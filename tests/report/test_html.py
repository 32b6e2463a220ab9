"""The report file: self-contained, inert whatever the model said, complete, written in one step."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from report_rows import ATTACK, BUDGETS, METHODS, MIXED, make_history, make_retention, make_row, make_rows
from report_zoo import many_rows, zoo_rows

from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.report.html import write_report
from indexmem.results.schema import RETENTION_SCHEMA, ROW_SCHEMA

LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """Tags with their attributes, script texts by type, and the visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.styles: list[str] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        attributes = self.tags[-1][1] if self.tags else {}
        if self.cdata_elem == "script":
            self.scripts.append((attributes.get("type"), data))
        elif self.cdata_elem == "style":
            self.styles.append(data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    rows = make_rows()
    out = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    experiment = Experiment(name="paper-ruler")
    assert write_report(experiment, rows, make_retention(rows), out, make_history(), command="make <report>") == out
    return Page(out.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    targets = [value for _, attributes in page.tags for name, value in attributes.items() if name in LOADING]
    assert targets
    assert all(value is not None and value.startswith(("#", "data:")) for value in targets)
    assert not re.search(r"@import|url\(", "".join(page.styles))
    policy = policy_of(page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]


def test_only_our_scripts_exist_and_hostile_text_is_text(page: Page) -> None:
    kinds = [kind for kind, _ in page.scripts]
    assert set(kinds) == {"application/gzip", None}
    assert kinds[-1] is None
    assert kinds.count(None) == 1
    assert len(re.findall("'sha256-", policy_of(page))) == 2, "our script, and the library that it unpacks"
    assert not any(ATTACK in text for kind, text in page.scripts if kind is None)
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)
    assert ATTACK in page.text  # the failure's message, shown as it was


def test_data_is_inert_whatever_is_in_it(page: Page) -> None:
    packed = [text for kind, text in page.scripts if kind is not None]
    assert all(re.fullmatch(r"[A-Za-z0-9+/=]+", text) for text in packed)
    samples = next(content for content in map(unpacked, packed) if "told" in content)
    assert any(f"</script><script>{ATTACK}" in text for text in samples["texts"])
    assert not any("\u2028" in text for text in samples["texts"])


def test_every_method_benchmark_and_fact_is_there(page: Page) -> None:
    for word in (
        *METHODS,
        "niah_single_2",
        "4be1d0c5a3f2",
        "torch 2.13.0",
        "cpu (8 cores)",
        "samples 42",
        "make <report>",
    ):
        assert word in page.text
    assert "OutOfMemoryError" in page.text
    assert figures_drawn(page) == figures_there(page)


def test_controls_and_charts_have_names(page: Page) -> None:
    assert all(a.get("aria-label") for _, a in page.tags if a.get("role") in ("img", "region"))
    assert all(a.get("scope") for tag, a in page.tags if tag == "th")
    tables = sum(tag == "table" for tag, _ in page.tags)
    by_script = sum("by-task" in (a.get("class") or "") for _, a in page.tags)
    assert sum(tag == "caption" for tag, _ in page.tags) == tables - by_script
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    anchors = {a["href"][1:] for tag, a in page.tags if tag == "a" and a.get("href")}  # type: ignore[index]
    assert anchors <= {a.get("id") for _, a in page.tags}


def test_one_best_is_bold_only_when_it_wins(page: Page) -> None:
    first = page.text.split("Choose a cell")[1].split("By benchmark")[0]
    assert (first.count("★"), first.count("≈")) == (2, 11)


@pytest.mark.parametrize(
    "rows",
    [
        make_rows(samples=2, failures=2 * 3 * 29),
        make_rows(methods=(), samples=2, failures=0),
        make_rows(methods=("indexmem",), budgets=BUDGETS[1:2], benchmarks=("b",), samples=1, failures=0),
    ],
    ids=["all failed", "full cache only", "one cell"],
)
def test_thin_results_still_make_a_report(rows: pa.Table, tmp_path: Path) -> None:
    out = write_report(Experiment(), rows, RETENTION_SCHEMA.empty_table(), tmp_path / "report.html")
    ids = {attributes.get("id") for _, attributes in Page(out.read_text(encoding="utf-8")).tags}
    assert {"verdict", "scores", "provenance"} <= ids
    assert not {"kept", "distillation"} & ids


def test_each_kind_of_budget_has_a_panel_and_columns(tmp_path: Path) -> None:
    rows = make_rows(budgets=MIXED, samples=3)
    out = write_report(Experiment(), rows, make_retention(rows, tokens=200), tmp_path / "report.html")
    page = Page(out.read_text(encoding="utf-8"))
    wanted = ("ratio-mean", "tokens-mean", "bytes-mean", "bytes-benchmark-2", "bytes", "time")
    assert {f"figure-0-{name}" for name in wanted} <= figures_drawn(page)
    assert figures_drawn(page) == figures_there(page)
    for words in ("evictedkept per headbytes in all", "4 MiB", "1024 tokens kept"):
        assert words in page.text


def test_no_rows_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"jobs/eval_grid\.py"):
        write_report(Experiment(), ROW_SCHEMA.empty_table(), RETENTION_SCHEMA.empty_table(), tmp_path / "r.html")


def test_a_failed_write_keeps_the_old_report_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_report(Experiment(), make_rows(samples=1), RETENTION_SCHEMA.empty_table(), out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_links_lead_out_only_by_http(tmp_path: Path) -> None:
    links = {"MLflow run": "https://example.org/#/runs/1", "bad": "javascript:alert(1)"}
    rows = make_rows(samples=1)
    out = write_report(Experiment(), rows, RETENTION_SCHEMA.empty_table(), tmp_path / "r.html", links=links)
    found = [a["href"] for tag, a in Page(out.read_text(encoding="utf-8")).tags if tag == "a"]
    assert "https://example.org/#/runs/1" in found
    assert not any("javascript" in str(address) for address in found)


def test_all_sections_of_full_results_and_both_models(tmp_path: Path) -> None:
    out = write_report(Experiment(), zoo_rows(samples=1), RETENTION_SCHEMA.empty_table(), tmp_path / "r.html")
    page = Page(out.read_text(encoding="utf-8"))
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {"needles", "facets", "decoding", "ablations", "filter-model"} <= ids
    assert figures_drawn(page) == figures_there(page)
    assert "Protocol of prompts and scores" in page.text
    assert "official" in page.text
    hidden = [a["data-model"] for _, a in page.tags if a.get("class") == "view" and "hidden" in a]
    assert set(hidden) == {"1"}


def test_fidelity_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    plain = make_rows(samples=2).to_pylist()
    measured = [row | {"fidelity_kl": 0.125, "fidelity_top1": 0.9} for row in plain]
    pages = []
    for rows in (plain, measured):
        table = pa.Table.from_pylist(rows, schema=ROW_SCHEMA)
        out = write_report(Experiment(), table, RETENTION_SCHEMA.empty_table(), tmp_path / "r.html")
        pages.append(Page(out.read_text(encoding="utf-8")))
    without, page = pages
    assert "fidelity" not in {attributes.get("id") for _, attributes in without.tags}
    assert "Same token" not in without.text
    assert "fidelity" in {attributes.get("id") for _, attributes in page.tags}
    assert figures_drawn(page) == figures_there(page)
    assert "0.125" in page.text
    assert "90.0%" in page.text


def test_long_answers_have_their_length_and_several_pass_at_k(tmp_path: Path) -> None:
    held = {"decode_kept_mean": 9.0, "decode_kept_max": 12, "truncated": False}
    rows = [
        make_row(method, budget, "maths", n, float(n % 3 == 0), repeat=k, new_tokens=400 + n + extra, **held)
        for method, budget, extra in (("full", 0.0, 0), ("knorm", 0.5, 70))
        for n in range(6)
        for k in range(2)
    ]
    folder = tmp_path / "report"
    table = pa.Table.from_pylist(rows, schema=ROW_SCHEMA)
    page = Page(
        write_report(
            Experiment(), table, RETENTION_SCHEMA.empty_table(), tmp_path / "report.html", [], folder=folder
        ).read_text()
    )
    assert "More than full" in page.text
    assert "+70" in page.text
    assert "pass@2" in page.text
    lines = (folder / "answers.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 + 1 + 2 * 2  # lengths, one difference, pass@1 and pass@2
    assert any(line.startswith("smollm2-135m-instruct,tokens over the full cache's,knorm,50%,70.0") for line in lines)


def test_ten_thousand_cells_stay_a_small_page(tmp_path: Path) -> None:
    """Size decides how fast a page opens, so that is what is held here; tests/bench/report_page.py has times."""
    rows = many_rows(2_500, samples=1, models=1)
    out = write_report(Experiment(), rows, RETENTION_SCHEMA.empty_table(), tmp_path / "r.html")
    page = Page(out.read_text(encoding="utf-8"))
    assert len(page.tags) < 4_000
    library, *_ = sorted((len(text) for kind, text in page.scripts if kind is not None), reverse=True)
    assert 1e6 < library < 2.2e6
    data = sum(len(text) for kind, text in page.scripts if kind is not None) - library
    assert data / 2_500 < 250  # bytes a cell


def policy_of(page: Page) -> str:
    return next(a["content"] or "" for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")


def figures_drawn(page: Page) -> set[str | None]:
    return {attributes["data-figure"] for _, attributes in page.tags if "data-figure" in attributes}


def figures_there(page: Page) -> set[str | None]:
    ids = {attributes.get("id") for tag, attributes in page.tags if tag == "script"}
    return {name for name in ids if name and name.startswith("figure-")}


def unpacked(text: str) -> dict[str, Any]:
    """JSON, or {} of the chart library."""
    content = gzip.decompress(base64.b64decode(text))
    return dict(json.loads(content)) if content.startswith(b"{") else {}
