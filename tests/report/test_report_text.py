"""Numbers and foreign text as they are shown."""

from __future__ import annotations

import pytest

from indexmem.report.text import bytes_text, p_words, seconds_text, signed, visible


def test_units() -> None:
    assert [bytes_text(n) for n in (12, 2048, 5 * 2**20, 3 * 2**30)] == ["12 B", "2.0 KiB", "5.0 MiB", "3.0 GiB"]
    assert [seconds_text(s) for s in (0.0123, 6.1)] == ["12 ms", "6.1 s"]
    assert [signed(share) for share in (0.033, -0.5)] == ["+3.3", "\N{MINUS SIGN}50.0"]
    assert [p_words(p) for p in (0.0004, 0.0123)] == ["p < 0.001", "p = 0.012"]


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
