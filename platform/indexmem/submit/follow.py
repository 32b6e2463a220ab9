"""A job's log as it is written, until the job has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import aiohttp
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from indexmem.errors import UserError

LOOK_SECONDS = 1.0
LOST_SECONDS = 60.0  # without an answer from the job server, before giving up
UNANSWERED = (aiohttp.ClientError, RuntimeError, OSError)


def follow(client: JobSubmissionClient, submission: str, write: Callable[[str], None]) -> JobDetails:
    """Write the whole log of a job while it grows; returns how the job ended.

    A log stream may end before its job does (a proxy's time limit, a restarted agent): then the rest is fetched and
    the stream opened again behind it. Raises UserError when the job server is gone; the job need not be.
    """
    written = 0
    heard = time.monotonic()

    def pass_on(text: str) -> None:
        nonlocal written
        written += len(text)
        write(text)

    while True:
        with suppress(*UNANSWERED):
            asyncio.run(_stream(client, submission, written, pass_on))
        try:
            details = client.get_job_info(submission)  # before the log, which is then complete if the job has ended
            heard = time.monotonic()
            with suppress(*UNANSWERED):  # a log is gone with the node that held it
                pass_on(client.get_job_logs(submission)[written:])
            if details.status.is_terminal():
                return details
        except UNANSWERED as error:
            if time.monotonic() - heard > LOST_SECONDS:
                raise UserError(
                    f"The job server no longer answers; how {submission} ended is not known. {error}"
                ) from None
        time.sleep(LOOK_SECONDS)


def exit_code(details: JobDetails) -> int:
    """That of the job's own command; 1 where there is none, as for a stopped job."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    code = details.driver_exit_code or 1
    return code if 0 < code < 256 else 1  # negative: a signal


async def _stream(client: JobSubmissionClient, submission: str, skip: int, write: Callable[[str], None]) -> None:
    async for text in client.tail_job_logs(submission):
        fresh = text[skip:]
        skip = max(0, skip - len(text))
        if fresh:
            write(fresh)
