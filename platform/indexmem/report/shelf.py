"""The folder of reports: each grid and sweep keeps a file of its own, and an index names them all.

What a page is of stands in its head, so that the folder needs no other record, and pages may be moved and deleted.
"""

from __future__ import annotations

import datetime as dt
import html
import re
from pathlib import Path

from indexmem.files import write_whole
from indexmem.report.document import asset, policy, template_environment

INDEX = "index.html"
HEAD_BYTES = 4096
_OF = re.compile(r'<meta name="indexmem-of" content="([^"]*)">')
_ABOUT = re.compile(r'<meta name="description" content="([^"]*)">')
_TITLE = re.compile(r"<title>([^<]*)</title>")


def page_path(folder: Path, name: str, of: str) -> Path:
    """Where the page of `of`, a hash of its content's identity, goes: <name>.html, or a name with the hash where that
    one is of something else.
    """
    plain = folder / f"{name}.html"
    taken = plain.exists() and _found(_OF, _head(plain)) != of
    return folder / f"{name}-{of[:6]}.html" if taken else plain


def write_index(folder: Path) -> Path:
    """Write index.html: all pages of the folder, the newest first."""
    pages = sorted((p for p in folder.glob("[!.]*.html") if p.name != INDEX), key=_changed, reverse=True)
    lines = [
        {
            "file": page.name,
            "title": html.unescape(_found(_TITLE, head)) or page.stem,
            "about": html.unescape(_found(_ABOUT, head)),
            "changed": f"{dt.datetime.fromtimestamp(_changed(page), dt.UTC):%Y-%m-%d %H:%M}",
        }
        for page, head in ((page, _head(page)) for page in pages)
    ]
    text = (
        template_environment()
        .get_template("index.html.j2")
        .render(lines=lines, folder=folder.absolute(), policy=policy([]), style=asset("report.css"))
    )
    write_whole(folder / INDEX, text)
    return folder / INDEX


def _head(page: Path) -> str:
    with page.open("rb") as file:
        return file.read(HEAD_BYTES).decode("utf-8", "replace")


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _changed(page: Path) -> float:
    return page.stat().st_mtime
