"""A report is never overwritten by that of another grid, and the index names them all."""

from __future__ import annotations

from pathlib import Path

from report_rows import make_rows
from sweep_trials import made_sweep

from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.report.shelf import page_path, write_index
from indexmem.results.schema import RETENTION_SCHEMA
from indexmem.sweep.page import write_sweep_report

FIRST, SECOND = "aaaa1111bbbb2222", "cccc3333dddd4444"


def written(folder: Path, of: str, methods: tuple[str, ...]) -> Path:
    rows = make_rows(methods, samples=2, failures=0)
    out = page_path(folder, "ruler", of)
    return write_report(Experiment(name="ruler"), rows, RETENTION_SCHEMA.empty_table(), out, of=of)


def test_each_grid_of_a_name_keeps_its_file_in_whatever_order(tmp_path: Path) -> None:
    first = written(tmp_path, FIRST, ("knorm", "snapkv"))
    second = written(tmp_path, SECOND, ("knorm", "<i>&"))
    assert (first.name, second.name) == ("ruler.html", "ruler-cccc33.html")
    assert page_path(tmp_path, "ruler", FIRST) == first, "the same grid again"
    assert page_path(tmp_path, "ruler", SECOND) == second
    (tmp_path / "old.html").write_text("<title>of an earlier version</title>")
    assert page_path(tmp_path, "old", FIRST).name == "old-aaaa11.html", "nobody says whose it is"

    index = write_index(tmp_path).read_text()
    assert all(f'<a href="{name}">' in index for name in ("ruler.html", "ruler-cccc33.html", "old.html"))
    assert "4,096 tokens · snapkv and knorm · " in index
    assert "knorm and &lt;i&gt;&amp;" in index or "&lt;i&gt;&amp; and knorm" in index
    assert "index.html" not in index
    assert write_index(tmp_path).read_text() == index


def test_sweeps_are_named_beside_reports(tmp_path: Path) -> None:
    write_sweep_report(made_sweep(count=3), tmp_path)
    assert "tune-indexer-sweep.html" in (tmp_path / "index.html").read_text()
    assert "sweep of indexer.dim, indexer.share_every" in (tmp_path / "index.html").read_text()
