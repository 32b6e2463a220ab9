"""The pictures of the documentation, taken of the pages as they are.

    python tests/bench/pictures.py runs/reports/quickstart.html

Verdict, samples and kept tokens are of the report that is named; all other numbers are made up. Writes docs/images.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from chrome import Chrome, Page
from mlflow_server import serving
from report_rows import make_history, make_rows
from report_zoo import zoo_rows
from sweep_trials import made_sweep

from indexmem.commands.report import mirror_grid
from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.results.schema import RETENTION_SCHEMA
from indexmem.sweep.page import write_sweep_report
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import open_store

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SETTLED = "document.documentElement.dataset.charts && document.documentElement.dataset.samples"
WIDTH, HEIGHT = 1280, 1000
MLFLOW_WIDTH = 1400  # its description stands beside all else from here on


def of_report(chrome: Chrome, report: Path) -> None:
    """From the verdict to a sample: what the three clicks show."""
    page = chrome.open(report, WIDTH, HEIGHT)
    page.until(SETTLED)
    page.screenshot(IMAGES / "report-verdict.png")
    page.click("#verdict .findings li:last-child .open")
    page.until("location.hash.startsWith('#samples')")
    page.screenshot(IMAGES / "report-samples.png")
    page.click("#see-list .sample-head .open")
    page.until("location.hash.startsWith('#kept')")
    page.screenshot(IMAGES / "report-kept.png")
    page.close()


def of_made_up_reports(chrome: Chrome, folder: Path) -> None:
    """Heat maps, and curves in dark mode."""
    rows = zoo_rows()
    report = write_report(Experiment(), rows, RETENTION_SCHEMA.empty_table(), folder / "zoo.html", make_history())
    for name, section, dark in (("report-needles", "needles", False), ("report-dark", "curves", True)):
        page = chrome.open(report, WIDTH, HEIGHT, dark=dark)
        page.until(SETTLED)
        _show(page, section)
        page.screenshot(IMAGES / f"{name}.png")
        page.close()
    page = chrome.open(write_sweep_report(made_sweep(), folder), WIDTH, 1180)
    page.until("document.documentElement.dataset.charts")
    page.screenshot(IMAGES / "sweep.png")
    page.close()


def of_mlflow(chrome: Chrome, folder: Path) -> None:
    """A grid's run, and the list of runs."""
    database = f"sqlite:///{folder / 'mlflow.db'}"
    open_store(database, folder / "artifacts")
    with serving(database, folder) as server:
        spec = {"name": "paper-ruler", "run": {"root": str(folder)}, "tracking": {"uri": server.uri}}
        experiment, rows = validate(spec, "pictures"), make_rows()
        report = folder / "paper-ruler.html"
        report.write_text("<p>report</p>")
        sink = MlflowSink.open(experiment)
        assert sink is not None
        url = mirror_grid(sink, experiment, rows, report)
        assert url is not None
        runs = f"{url.partition('/runs/')[0]}/runs?workflowType=machine_learning"
        for name, address, height, there in (
            ("mlflow-run", url, 1200, "Child runs"),
            ("mlflow-runs", runs, 620, "matching runs"),
        ):
            page = Page(chrome, address, MLFLOW_WIDTH, height, dark=False)
            page.until(f"document.body.innerText.includes({there!r})")
            for part in ("assistant.chat_panel.close", "comment_text_toggle", "runnamecellrenderer"):
                page.evaluate("new Promise((done) => setTimeout(done, 3000))")  # tables fill slowly
                page.evaluate(f"document.querySelector('[data-component-id*=\"{part}\"]')?.click()")
            page.evaluate("new Promise((done) => setTimeout(done, 3000))")
            page.screenshot(IMAGES / f"{name}.png")
            page.close()


def _show(page: Page, section: str) -> None:
    """Its charts drawn, its title at the top."""
    page.evaluate(f"Promise.all(all('#{section} [data-figure]').filter(seen).map(draw))")
    page.evaluate(f"$('{section}').scrollIntoView()")
    page.evaluate("new Promise((done) => setTimeout(done, 300))")


def main() -> None:
    (report,) = map(Path, sys.argv[1:])
    with Chrome() as chrome, tempfile.TemporaryDirectory() as folder:
        of_report(chrome, report.absolute())
        of_made_up_reports(chrome, Path(folder))
        of_mlflow(chrome, Path(folder))


if __name__ == "__main__":
    main()
