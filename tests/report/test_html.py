"""The report file: self-contained, inert whatever the model said, complete, written in one step."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from report_rows import ATTACK, BUDGETS, METHODS, MIXED, make_history, make_retention, make_rows

from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.report import html
from indexmem.report.html import bytes_text, seconds_text, write_report
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
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]


def test_only_our_scripts_exist_and_hostile_text_is_text(page: Page) -> None:
    kinds = [kind for kind, _ in page.scripts]
    assert kinds == ["application/json"] * 2 + [None] * 3
    assert not any(ATTACK in text for kind, text in page.scripts if kind is None)
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)
    assert ATTACK in page.text  # the failure's message, shown as it was


def test_embedded_json_keeps_hostile_predictions_intact(page: Page) -> None:
    raw = page.scripts[1][1]
    assert "<" not in raw
    assert "\u2028" not in raw
    texts = [answer["text"] for sample in json.loads(raw)["samples"] for answer in sample["answers"]]
    assert any(f"</script><script>{ATTACK}" in text for text in texts)


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
    drawn = {attributes["data-figure"] for _, attributes in page.tags if "data-figure" in attributes}
    assert drawn == set(json.loads(page.scripts[0][1]))


def test_controls_and_charts_have_names(page: Page) -> None:
    assert all(a.get("aria-label") for _, a in page.tags if a.get("role") in ("img", "region"))
    assert all(a.get("scope") for tag, a in page.tags if tag == "th")
    anchors = {a["href"][1:] for tag, a in page.tags if tag == "a" and a.get("href")}  # type: ignore[index]
    assert anchors <= {a.get("id") for _, a in page.tags}


def test_one_best_is_bold_only_when_it_wins(page: Page) -> None:
    first = page.text.split("Mean over 3 benchmarks, in %")[1].split("niah_multikey_1")[0]
    assert (first.count("★"), first.count("≈")) == (2, 10)


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
    drawn = {attributes["data-figure"] for _, attributes in page.tags if "data-figure" in attributes}
    assert {"ratio-mean", "tokens-mean", "bytes-mean", "bytes-benchmark-2", "costs"} <= drawn
    assert drawn == set(json.loads(page.scripts[0][1]))
    for words in ("by evicted share or by tokens kept per head or by bytes in all", "4 MiB", "1024 tokens kept"):
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

    monkeypatch.setattr(html.os, "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_report(Experiment(), make_rows(samples=1), RETENTION_SCHEMA.empty_table(), out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_units() -> None:
    assert [bytes_text(n) for n in (12, 2048, 5 * 2**20, 3 * 2**30)] == ["12 B", "2.0 KiB", "5.0 MiB", "3.0 GiB"]
    assert [seconds_text(s) for s in (0.0123, 6.1)] == ["12 ms", "6.1 s"]
