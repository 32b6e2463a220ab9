"""Files of a job's node for whoever reaches the job server, which may be the only port that a laptop has.

Ray serves what lies in the folder of its logs, and follows links that lead out of it. An offer is a folder of such
links beside the logs, with a list of what they lead to. It is there while the job runs that made it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from indexmem.cluster.connection import ray_cluster
from indexmem.files import sha256_of
from indexmem.signals import StopSignals

LIST = "files.json"
SAID = "offered as "  # begins the line of the job's log that names the folder
OFFERED_SECONDS = 3600.0  # if nobody stops the job: whoever wanted the files is gone
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class OfferedFile:
    """The n-th of a list is called `n` in the offer."""

    place: str  # where it belongs below the receiver's folder
    bytes: int
    sha256: str


def offer(files: Mapping[str, Path], seconds: float = OFFERED_SECONDS) -> None:
    """Offer `files` (place -> file) until the job is stopped, or for so long; says in its log where."""
    with _links(files) as folder, StopSignals() as stop:  # in this order: connecting to Ray sets its own handler
        print(f"{SAID}{folder}", flush=True)
        end = time.monotonic() + seconds
        while stop.received is None and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)


@contextmanager
def _links(files: Mapping[str, Path]) -> Iterator[str]:
    with ray_cluster() as context:
        logs = Path(str(context.address_info["session_dir"])) / "logs"
    folder = Path(tempfile.mkdtemp(prefix="indexmem-offer-", dir=logs))
    try:
        listed = []
        for number, (place, file) in enumerate(sorted(files.items())):
            (folder / str(number)).symlink_to(file.absolute())
            listed.append(asdict(OfferedFile(place, file.stat().st_size, sha256_of(file))))
        (folder / LIST).write_text(json.dumps(listed), encoding="utf-8")
        yield folder.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
