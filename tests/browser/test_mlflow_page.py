"""A published grid in MLflow's own UI, in a real browser: the list of runs, and the page that tells the result."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow_server import serving
from report_rows import make_rows

from indexmem.commands.report import mirror_grid
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.report.verdict import verdict
from indexmem.results.summary import summarise
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import open_store

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"),
]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-sync", "--disable-component-update", "--virtual-time-budget=30000", "--window-size=1400,1600"]
GRID = make_rows(("indexmem", "indexer", "knorm"), (Budget.of_ratio(0.5), Budget.of_ratio(0.9)), ("niah", "vt"))


@dataclass(frozen=True)
class Published:
    run_url: str
    profile: Path

    def visit(self, url: str) -> str:
        """The page after its scripts ran."""
        assert CHROMIUM is not None
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self.profile}", "--dump-dom", url]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("mlflow-page")
    database = f"sqlite:///{folder / 'mlflow.db'}"
    open_store(database, folder / "artifacts")
    with serving(database, folder) as server:
        spec = {"name": "paper-ruler", "run": {"root": str(folder)}, "tracking": {"uri": server.uri}}
        experiment = validate(spec, "test")
        report = folder / "paper-ruler.html"
        report.write_text("<p>report</p>")
        sink = MlflowSink.open(experiment)
        assert sink is not None
        url = mirror_grid(sink, experiment, GRID, report)
        assert url is not None
        yield Published(url, folder / "profile")


def test_the_page_of_a_grid_tells_the_result(published: Published) -> None:
    page = published.visit(published.run_url)
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    assert "paper-ruler" in text
    assert verdict(summarise(GRID)).headline in text
    assert "Held while decoding" in text
    assert "indexmem 90% niah" in text, "the cells are listed"
    assert re.search(r'href="#/experiments/\d+/runs/\w+/artifacts/paper-ruler.html', page)


def test_the_list_shows_the_grid_and_says_how_to_read_it(published: Published) -> None:
    page = published.visit(published.run_url.partition("/runs/")[0] + "/runs?workflowType=machine_learning")
    text = re.sub(r"<[^>]+>", " ", page)
    assert "paper-ruler" in text
    assert "One run per spec, with one child run per cell" in text
    assert re.search(rf"{1 + 2 + 3 * 2 * 2}\s+matching\s+runs", text)
