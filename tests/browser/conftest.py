"""One browser for all tests of pages, and the report that most of them look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chrome import BINARY, Chrome
from report_rows import make_history, make_retention, make_rows

from indexmem.config.schema import Experiment
from indexmem.report.html import write_report


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    if BINARY is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with Chrome() as started:
        yield started


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = make_rows()
    out = tmp_path_factory.mktemp("browser") / "report.html"
    return write_report(Experiment(name="paper-ruler"), rows, make_retention(rows), out, make_history())
