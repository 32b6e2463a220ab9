"""The documentation as a site: every page is in its menu, and it is built without a warning."""

import subprocess
import sys
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[1]


def pages(menu):
    """Files that a menu names."""
    for entry in menu:
        for value in entry.values():
            yield from pages(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_menu():
    menu = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = REPOSITORY / "docs"
    assert sorted(pages(menu)) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


def test_the_site_is_built_strictly_with_an_api_reference_and_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "index.html").read_text(encoding="utf-8")
    assert "indexmem.api.run_grid" in reference
    assert "shares of the KV cache that are evicted" in reference
    assert 'src="http' not in reference and 'rel="stylesheet" href="http' not in reference
