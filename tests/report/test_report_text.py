"""Numbers and foreign text as they are shown."""

from __future__ import annotations

import pyarrow as pa
import pytest
from report_rows import make_row

from indexmem.config.schema import MEAN, Experiment
from indexmem.report.figures.curves import benchmark_title
from indexmem.report.origin import origin
from indexmem.report.text import bytes_text, counted, p_words, references_text, seconds_text, signed, visible
from indexmem.report.verdict import verdict
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import summarise


def test_units() -> None:
    assert [bytes_text(n) for n in (12, 2048, 5 * 2**20, 3 * 2**30)] == ["12 B", "2.0 KiB", "5.0 MiB", "3.0 GiB"]
    assert [seconds_text(s) for s in (0.0123, 6.1)] == ["12 ms", "6.1 s"]
    assert [signed(share) for share in (0.033, -0.5)] == ["+3.3", "\N{MINUS SIGN}50.0"]
    assert [p_words(p) for p in (0.0004, 0.0123)] == ["p < 0.001", "p = 0.012"]


def test_one_is_no_plural() -> None:
    assert [counted(n, "row") for n in (0, 1, 1620)] == ["0 rows", "1 row", "1,620 rows"]
    rows = pa.Table.from_pylist([make_row(m, 0.5, "vt", 0, 1.0) for m in ("a", "b")], schema=ROW_SCHEMA)
    summary = summarise(rows)
    assert benchmark_title(summary, MEAN) == "vt"
    assert "Mean over 1 benchmark, 1 sample each" in verdict(summary).basis
    assert ("Rows", "2 rows in 2 cells") in origin(Experiment(), rows).facts
    assert ("Rows", "1 row in 1 cell") in origin(Experiment(), rows.slice(0, 1)).facts


@pytest.mark.parametrize(
    ("labels", "shown"),
    [('{"references": "all"}', "a  and  b"), ('{"references": "any"}', "a  or  b"), (None, "a, b"), ("{}", "a, b")],
)
def test_references_say_whether_all_are_needed(labels: str | None, shown: str) -> None:
    assert references_text(["a", "b"], labels) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a␀b"),
        ("user\u202egnp.exe", "user[U+202E]gnp.exe"),
        ("\u2066x\u2069", "[U+2066]x[U+2069]"),
        ("line\u2028end", "line[U+2028]end"),
        ("\x1b[31mred\x7f", "␛[31mred[U+007F]"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("<b>&amp;</b>", "<b>&amp;</b>"),  # the page escapes; here nothing is lost
        ("שלום 你好", "שלום 你好"),
    ],
)
def test_what_is_unseen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_long_text_ends_in_an_ellipsis() -> None:
    assert visible("x" * 1_000_000, 5) == "xxxxx…"
    assert visible("xxxxx", 5) == "xxxxx"
