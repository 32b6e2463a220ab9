"""The documentation's notebook runs as it stands."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from indexmem.config.spec import home

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.ipynb")), ids=lambda path: path.name)
def test_every_cell_runs_and_gives_what_is_shown(path, tmp_path, monkeypatch):
    shown = nbformat.read(path, as_version=4)
    assert not any(word in path.read_text(encoding="utf-8") for word in ("/home/", "/root/", "/tmp/"))
    fresh = nbformat.from_dict(shown)
    assets = home() / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    (tmp_path / "assets").symlink_to(assets)  # results of its own, texts that are here already
    monkeypatch.setenv("INDEXMEM_HOME", str(tmp_path))
    NotebookClient(fresh, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    for before, after in zip(shown.cells, fresh.cells):
        assert kinds(before) == kinds(after), before.source


def kinds(cell):
    """What a cell shows: a table, a number, nothing."""
    return [sorted(output["data"]) for output in cell.get("outputs", ()) if "data" in output]
