"""A headless Chromium that visits one page at a time."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--v=0",
]


@dataclass(frozen=True)
class Visit:
    """The page after its scripts ran (`dom`), and what it said on the console."""

    dom: str
    console: list[str]

    @property
    def pwned(self) -> bool:
        return re.search(r"<html[^>]*data-pwned", self.dom) is not None

    def text_of(self, element_id: str) -> str:
        inside = re.search(rf'<(\w+) id="{element_id}"[^>]*>(.*?)</\1>', self.dom, re.DOTALL)
        assert inside is not None, f"no element {element_id}"
        return html.unescape(re.sub(r"<[^>]+>", "", inside[2]))


def visit(url: str, profile: Path, *more: str, size: str = "1280,4000", milliseconds: int = 8000) -> Visit:
    """Let the page run for so many milliseconds of its own clock, which skips what would be waiting."""
    assert CHROMIUM is not None
    clock = [f"--virtual-time-budget={milliseconds}", f"--window-size={size}"]
    command = [CHROMIUM, *FLAGS, *clock, f"--user-data-dir={profile}", *more, "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])
