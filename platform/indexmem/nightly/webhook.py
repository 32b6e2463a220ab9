"""The verdict as a JSON POST. The address comes from the environment alone, since it may hold a secret."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
import warnings

from indexmem.config.spec import content_hash
from indexmem.files import write_whole
from indexmem.nightly.night import Night
from indexmem.nightly.verdict import NightVerdict

VARIABLE = "INDEXMEM_NIGHTLY_WEBHOOK"
SECONDS = 10.0
SCHEMES = ("http://", "https://")


def payload(verdict: NightVerdict, page: str) -> dict[str, object]:
    """The verdict with its status and a `text`, which chat services show. `page`: its address, or else its path."""
    text = f"{verdict.nightly} {verdict.date}: {verdict.headline}"
    link = f" {page}" if page.startswith(SCHEMES) else ""  # a path leads nowhere from a chat
    return {"status": verdict.status, "text": text + link, "page": page, "verdict": verdict.model_dump(mode="json")}


def notify(verdict: NightVerdict, night: Night, page: str) -> bool:
    """Post each verdict of a night once. Returns whether it was taken now; a failure warns and is tried again later."""
    address = os.environ.get(VARIABLE, "")
    content = payload(verdict, page)
    sent, digest = night.folder / "notified", content_hash(content["verdict"])
    if not address or (sent.is_file() and sent.read_text() == digest):
        return False
    try:
        if not address.startswith(SCHEMES):
            raise ValueError("not an http address")
        headers = {"Content-Type": "application/json", "User-Agent": "indexmem"}
        request = urllib.request.Request(address, json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=SECONDS):
            pass
    except (OSError, ValueError, urllib.error.URLError) as error:
        # Neither the address nor urllib's message, which may quote it, is shown.
        reason = getattr(error, "code", None) or type(error).__name__
        warnings.warn(f"The address in {VARIABLE} did not take the verdict ({reason}).", RuntimeWarning, stacklevel=2)
        return False
    write_whole(sent, digest)
    return True
