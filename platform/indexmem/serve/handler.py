"""Answers of the report server. It reads, below a few folders, what has a plain name; everything else is not found."""

from __future__ import annotations

import re
import shutil
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from indexmem.live.board import FOLDER as LIVE
from indexmem.serve.catalog import NIGHTS, PAGE, REPORTS
from indexmem.serve.pages import Pages

TYPES = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".json": "application/json",
        ".csv": "text/csv; charset=utf-8",
        ".md": "text/plain; charset=utf-8",
        ".tex": "text/plain; charset=utf-8",
        ".txt": "text/plain; charset=utf-8",
        ".png": "image/png",
        ".svg": "image/svg+xml",
        ".pdf": "application/pdf",
        ".parquet": "application/vnd.apache.parquet",
    }
)
ASSETS = frozenset({"page.css", "refresh.js"})
# Our pages: nothing inline, nothing from elsewhere.
OWN_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Files of the run root: no network, and an origin of their own, so that a script in one cannot read the others.
FILE_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOSTS = frozenset({"127.0.0.1", "localhost"})

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", re.ASCII)  # no slash, no leading dot


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD. A subclass names the run root and its pages."""

    root: Path
    pages: Pages

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "indexmem", ""
    timeout = 30  # seconds that a silent connection is held

    def do_GET(self) -> None:
        self._policy = OWN_POLICY
        # A page of another site can point a name of its own at this machine; it cannot choose the Host header.
        if self.headers.get("Host", "").partition(":")[0].lower() not in HOSTS:
            return self.send_error(HTTPStatus.FORBIDDEN, "Reach this server as 127.0.0.1 or localhost")
        match [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]:
            case [""]:
                self._send(self.pages.index())
            case ["assets", name] if name in ASSETS:
                self._send(files("indexmem.serve").joinpath("assets", name).read_text(encoding="utf-8"), name)
            case ["live", name] if name.endswith(".json"):
                self._send_file(self.root / LIVE, name)
            case ["live", name] if _PLAIN.fullmatch(name) and (page := self.pages.live(name)) is not None:
                self._send(page)
            case ["reports", *parts]:
                self._send_file(self.root / REPORTS, *parts)
            case ["nightly", name, date, page] if page == PAGE:
                self._send_file(self.root / NIGHTS, name, date, page)
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)
        return None

    do_HEAD = do_GET

    def end_headers(self) -> None:
        for name, value in (
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", getattr(self, "_policy", OWN_POLICY)),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the terminal says where the pages are and nothing else."""

    def _send(self, text: str, name: str = "page.html") -> None:
        content = text.encode()
        self._head(name, len(content))
        if self.command == "GET":
            self.wfile.write(content)

    def _send_file(self, folder: Path, *parts: str) -> None:
        """A file below `folder` of a known type, links out of it excluded."""
        path = folder.joinpath(*parts) if parts and all(map(_PLAIN.fullmatch, parts)) else folder
        inside = path.resolve().is_relative_to(folder.resolve())
        if not (inside and path.suffix in TYPES and path.is_file()):
            return self.send_error(HTTPStatus.NOT_FOUND)
        self._policy = FILE_POLICY
        with path.open("rb") as stream:
            length = stream.seek(0, 2)
            stream.seek(0)
            self._head(path.name, length)
            if self.command == "GET":
                shutil.copyfileobj(stream, self.wfile)
        return None

    def _head(self, name: str, length: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[Path(name).suffix])
        self.send_header("Content-Length", str(length))
        self.end_headers()
