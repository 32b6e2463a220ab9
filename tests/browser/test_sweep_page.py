"""A sweep's page in a real browser: every chart drawn within its policy, nothing beside the page on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from chrome import BINARY, Chrome
from sweep_trials import made_sweep

from indexmem.sweep.page import write_sweep_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine: apt-get install chromium"),
]
DRAWN = """[...document.querySelectorAll('[data-figure]')]
  .every((chart) => chart.querySelector('.scatterlayer .trace path'))"""


def test_all_charts_are_drawn_and_fit(tmp_path: Path) -> None:
    with Chrome() as chrome:
        for objectives, width, dark in ((1, 1280, False), (3, 390, True)):
            page = chrome.open(write_sweep_report(made_sweep(objectives), tmp_path), width, dark=dark)
            page.until("document.documentElement.dataset.charts")
            assert page.evaluate("document.querySelectorAll('[data-figure]').length") == 4
            assert page.evaluate(DRAWN)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.complaints == []
            page.close()
