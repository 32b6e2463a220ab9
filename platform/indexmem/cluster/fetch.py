"""Files that a job offers, brought here through its job server: whole, checked, and only what is not here yet."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import requests
from ray.job_submission import JobSubmissionClient

from indexmem.cluster.job_server import follow, job_exit_code
from indexmem.cluster.offer import LIST, SAID, OfferedFile
from indexmem.errors import UserError
from indexmem.files import draft_of, sha256_of

T = TypeVar("T")

TRIES = 5  # of one file; a forwarded port breaks now and then
WAIT_SECONDS = 2.0  # between them
SILENCE_SECONDS = 60.0  # without a byte, before a try is given up
FILE_SECONDS = 24 * 3600  # Ray ends a transfer that takes longer; 30 s if not told


@dataclass(frozen=True)
class Offer:
    """Where a job's files are found."""

    client: JobSubmissionClient
    node: str
    folder: str

    @classmethod
    def of_job(cls, client: JobSubmissionClient, submission: str) -> Offer:
        """Wait for it. Raises UserError, with what the job said, when it ends without one."""
        said: list[str] = []
        details = follow(client, submission, said.append, lambda: SAID in "".join(said))
        lines = "".join(said).splitlines()
        folder = next((line.removeprefix(SAID) for line in lines if line.startswith(SAID)), None)
        if details.status.is_terminal() or folder is None or details.driver_node_id is None:
            raise UserError(
                f"The job {submission} found nothing to bring (exit code {job_exit_code(details)}):\n"
                + "\n".join(lines[-5:])
            )
        return cls(client, details.driver_node_id, folder)

    def files(self) -> list[OfferedFile]:
        """What is offered. Raises UserError when the job server does not give it."""
        listed = _until_it_works(f"the list of files at {self.folder}", lambda: json.loads(b"".join(self.read(LIST))))
        return [OfferedFile(**each) for each in listed]

    def read(self, name: str) -> Iterator[bytes]:
        """A file's content as it comes. Raises requests.RequestException when it breaks off."""
        # Ray's own get_log finds the server through the cluster's other ports, which a laptop does not reach. This
        # request carries the client's token, certificates and cookies.
        with self.client._do_request(
            "GET",
            "/api/v0/logs/file",
            params={"node_id": self.node, "filename": f"{self.folder}/{name}", "lines": -1, "timeout": FILE_SECONDS},
            stream=True,
            timeout=SILENCE_SECONDS,
        ) as answer:
            answer.raise_for_status()
            yield from answer.iter_content(None)


@dataclass(frozen=True)
class Fetched:
    """What has become of each file."""

    new: tuple[Path, ...]
    replaced: tuple[Path, ...]  # were here with another content
    kept: tuple[Path, ...]  # were here already

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.new, *self.replaced, *self.kept)


def fetch_files(offer: Offer, target: Path, say: Callable[[str], None]) -> Fetched:
    """Bring everything below `target`. A file takes its place when all of it is here and its digest is right.

    Raises UserError when a file does not come; those that came stay, and another call brings the rest.
    """
    new: list[Path] = []
    replaced: list[Path] = []
    kept: list[Path] = []
    for number, file in enumerate(offer.files()):
        path = _inside(target, file.place)
        if path.is_file() and path.stat().st_size == file.bytes and sha256_of(path) == file.sha256:
            kept.append(path)
            continue
        (replaced if path.exists() else new).append(path)
        say(f"{path}: {file.bytes / 2**20:.1f} MiB")
        _until_it_works(file.place, partial(_bring, offer, str(number), file.sha256, path))
    return Fetched(tuple(new), tuple(replaced), tuple(kept))


def _bring(offer: Offer, name: str, sha256: str, path: Path) -> None:
    digest = hashlib.sha256()
    with draft_of(path) as draft:
        with draft.open("wb") as stream:
            for piece in offer.read(name):
                digest.update(piece)
                stream.write(piece)
        if digest.hexdigest() != sha256:
            raise _Damaged("not what the cluster offered: it broke off, or was written anew there meanwhile")


class _Damaged(Exception):
    pass


def _until_it_works(what: str, attempt: Callable[[], T]) -> T:
    for left in reversed(range(TRIES)):
        try:
            return attempt()
        except (requests.RequestException, _Damaged, ValueError) as error:
            if not left:
                raise UserError(
                    f"{what} could not be fetched: {error}. What arrived is kept; the same command brings the rest."
                ) from None
            time.sleep(WAIT_SECONDS)
    raise AssertionError("unreachable")


def _inside(target: Path, place: str) -> Path:
    """Where a file goes. Raises UserError for a place outside: what a cluster says is not to be trusted blindly."""
    parts = PurePosixPath(place).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise UserError(f"The cluster offers a file for '{place}', which lies outside of {target}; it was left out.")
    return target.joinpath(*parts)
