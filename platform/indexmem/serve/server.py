"""The report server: reports, nights and live runs of a run root, for one person on this machine."""

from __future__ import annotations

import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from indexmem.errors import UserError
from indexmem.serve.handler import Handler
from indexmem.serve.pages import Pages

HOST = "127.0.0.1"
POLL_SECONDS = 0.1  # between looks at whether to end


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor who leaves early is no news; what else goes wrong is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ReportServer:
    """Serves from the moment it is entered as a context until that ends."""

    def __init__(self, root: Path, port: int) -> None:
        """Takes the port (0: any free one). Raises UserError when it is taken."""
        handler = type("RootHandler", (Handler,), {"root": root, "pages": Pages(root)})
        try:
            self._server = _Server((HOST, port), handler)
        except (OSError, OverflowError) as error:
            raise UserError(f"The report server cannot have port {port} on {HOST}: {error}. Choose another.") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="report-server", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> ReportServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
