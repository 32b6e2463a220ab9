"""A headless Chromium to look at a page with: evaluate, click, screenshot, print. One browser serves many pages."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

BINARY = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip
START_SECONDS, WAIT_SECONDS = 60.0, 60.0


class PageMoved(Exception):
    """The tab went to another address before it answered."""


class Chrome:
    """`with Chrome() as chrome: page = chrome.open(path)`. Speaks the DevTools protocol."""

    def __enter__(self) -> Chrome:
        assert BINARY is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [BINARY, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.loop = asyncio.new_event_loop()
        self.address = self.loop.run_until_complete(asyncio.wait_for(self._started(), START_SECONDS))
        self.session = self.loop.run_until_complete(self._client())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.loop.run_until_complete(self.session.close())
        self.loop.close()
        self._process.terminate()
        self._process.wait(timeout=30)
        self._profile.cleanup()

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False, fragment: str = "") -> Page:
        """The page at `path`, loaded; its scripts may still be at work."""
        return Page(self, f"{path.as_uri()}{fragment}", width, height, dark)

    def viewing(
        self, path: Path, settled: str, width: int = 1280, *, dark: bool = False, fragment: str = ""
    ) -> Iterator[Page]:
        """The page once `settled` is true, for a block at the end of which nothing may have complained."""
        page = self.open(path, width, dark=dark, fragment=fragment)
        page.until(settled)
        yield page
        assert page.complaints == []
        page.close()

    async def _started(self) -> str:
        port = Path(self._profile.name) / "DevToolsActivePort"
        while not (port.is_file() and "\n" in port.read_text()):
            await asyncio.sleep(0.05)
        return f"http://127.0.0.1:{port.read_text().split()[0]}"

    async def _client(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession()


class Page:
    """One tab. `complaints` are console errors and uncaught exceptions so far."""

    def __init__(self, chrome: Chrome, url: str, width: int, height: int, dark: bool) -> None:
        self._chrome = chrome
        self._number = 0
        self.complaints: list[str] = []
        self.loaded_ms = self._run(self._open(url, width, height, dark))

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        wanted = {"expression": script, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        found = self._run(self._send("Runtime.evaluate", **wanted))
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true. Asked anew each time, since the page may move to another address."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._holds(script):
            assert time.monotonic() < deadline, f"not in time: {script}"
            time.sleep(0.02)

    def _holds(self, script: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({script})"))
        except PageMoved:
            return False

    def click(self, selector: str) -> None:
        """A click on the first element that matches."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select by its value."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(
            f"{where}.value = {json.dumps(value)}; {where}.dispatchEvent(new Event('change', {{bubbles: true}}))"
        )

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def screenshot(self, out: Path, *, whole: bool = False) -> Path:
        """A PNG of what is in view, or of the whole page."""
        found = self._run(self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole))
        out.write_bytes(base64.b64decode(found["data"]))
        return out

    def pdf(self, out: Path) -> Path:
        found = self._run(self._send("Page.printToPDF", printBackground=True, preferCSSPageSize=True))
        out.write_bytes(base64.b64decode(found["data"]))
        return out

    def close(self) -> None:
        self._run(self._send("Page.close"))
        self._run(self._socket.close())

    def _run(self, work: Any) -> Any:
        return self._chrome.loop.run_until_complete(asyncio.wait_for(work, WAIT_SECONDS))

    async def _open(self, url: str, width: int, height: int, dark: bool) -> float:
        session, address = self._chrome.session, self._chrome.address
        async with session.put(f"{address}/json/new?about:blank") as answer:
            target = await answer.json()
        self._socket = await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        for domain in ("Page", "Runtime", "Log"):
            await self._send(f"{domain}.enable")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self._send("Emulation.setDeviceMetricsOverride", **screen)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self._send("Emulation.setEmulatedMedia", features=features)
        begun = asyncio.get_running_loop().time()
        await self._send("Page.navigate", url=url)
        await self._receive(lambda message: message.get("method") == "Page.loadEventFired")
        return 1000 * (asyncio.get_running_loop().time() - begun)

    async def _send(self, method: str, **params: Any) -> Any:
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await self._receive(lambda message: message.get("id") == number)
        if "navigated" in answer.get("error", {}).get("message", ""):
            raise PageMoved(answer["error"]["message"])
        assert "error" not in answer, answer["error"]
        return answer["result"]

    async def _receive(self, wanted: Any) -> Any:
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(
                    message["params"]["exceptionDetails"].get("exception", {}).get("description", "?")
                )
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.complaints.append(message["params"]["entry"]["text"])
            if message.get("method") == "Runtime.consoleAPICalled" and message["params"]["type"] in (
                "error",
                "warning",
            ):
                self.complaints.append(str(message["params"]["args"]))
            if wanted(message):
                return message
