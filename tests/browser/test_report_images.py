"""Figures as image files, drawn by the browser of this machine."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path

import pytest
from chrome import BINARY
from report_rows import make_rows

from indexmem.report.figures.curves import score_curve
from indexmem.report.images import HEIGHT, SCALE, WIDTH, write_images
from indexmem.results.summary import summarise

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine: apt-get install chromium"),
    pytest.mark.skipif(find_spec("kaleido") is None, reason="kaleido is not installed: pip install '.[images]'"),
]


def test_images_have_their_size_and_the_figures_words(tmp_path: Path) -> None:
    figure = score_curve(summarise(make_rows(samples=4)))
    write_images({"mean": figure, "again": figure}, tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"mean.png", "mean.svg", "again.png", "again.svg"}
    png = (tmp_path / "figures" / "mean.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (SCALE * WIDTH, SCALE * HEIGHT)
    svg = (tmp_path / "figures" / "mean.svg").read_text(encoding="utf-8")
    assert all(word in svg for word in ("<svg", "indexmem", "KV cache evicted", "Mean over 3 benchmarks"))
