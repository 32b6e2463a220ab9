"""Ray's job server: starts a job once, whoever submits it and however often, and follows its log."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from indexmem.cluster.job import Job
from indexmem.errors import UserError

LOOK_SECONDS = 1.0  # between looks at a job's log
LOST_SECONDS = 60.0  # without an answer from the job server, before giving up
UNANSWERED = (aiohttp.ClientError, RuntimeError, OSError)


@dataclass(frozen=True)
class Attempt:
    submission: str
    new: bool  # False: it was under way already


def job_client(address: str | None) -> JobSubmissionClient:
    """Client of the job server at `address`, else RAY_API_SERVER_ADDRESS, else RAY_ADDRESS, else port 8265 here.

    Raises UserError when nothing answers there, or when it wants a token.
    """
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(
            f"No job server at {address or 'the default address'}: {_first_line(error)}\n"
            "On this machine `ray start --head` starts one; that of a cluster is forwarded here by "
            "`ray dashboard cluster.yaml` or `kubectl port-forward`. Then: --address http://127.0.0.1:8265"
        ) from None


def start_attempt(
    client: JobSubmissionClient, job: Job, environment: Mapping[str, Any], if_running: Literal["join", "refuse"]
) -> Attempt:
    """Start an attempt at the job, unless one is under way.

    Ids are counted from what the server has, and the server takes each id once: of two who submit at the same time one
    starts the attempt, and the other finds it. Raises UserError for what is under way with if_running='refuse', and
    when the server does not take the job.
    """
    known = _attempts(client, job)  # one look for both: an attempt that begins between two would be passed over
    current = _under_way(known)
    if current is None:
        submission = f"{job.key}-{max(known, default=0) + 1}"
        try:
            client.submit_job(
                submission_id=submission,
                entrypoint=job.entrypoint,
                runtime_env=dict(environment),
                metadata=dict(job.metadata),
            )
            return Attempt(submission, new=True)
        except RuntimeError as error:
            current = attempt_under_way(client, job)
            if current is None:
                raise UserError(f"The job server did not take the job: {_first_line(error)}") from None
    if if_running == "refuse":
        raise UserError(f"{current} is under way with the same spec. --if-running join follows it instead.")
    return Attempt(current, new=False)


def attempt_under_way(client: JobSubmissionClient, job: Job) -> str | None:
    """Id of the attempt that has not ended."""
    return _under_way(_attempts(client, job))


def follow(
    client: JobSubmissionClient,
    submission: str,
    write: Callable[[str], None],
    enough: Callable[[], bool] = lambda: False,
) -> JobDetails:
    """Write a job's log while it grows; returns how the job ended, or where it is once `enough` has been written.

    Raises UserError when the job server no longer answers; the job itself may go on.
    """
    written = 0
    heard = time.monotonic()
    while True:
        try:
            details = client.get_job_info(submission)  # before the log, which is then complete if the job has ended
            heard = time.monotonic()
            with suppress(*UNANSWERED):  # a log is gone with the node that held it
                log = client.get_job_logs(submission)
                write(log[written:])
                written = max(written, len(log))
            if details.status.is_terminal() or enough():
                return details
        except UNANSWERED as error:
            if time.monotonic() - heard > LOST_SECONDS:
                raise UserError(
                    f"The job server no longer answers; how {submission} ended is not known. {error}"
                ) from None
        time.sleep(LOOK_SECONDS)


def job_exit_code(details: JobDetails) -> int:
    """That of the job's own command; as a shell has it for one that a signal ended, and 1 for one that never began.

    Ray keeps no code of a job that it was asked to stop: it has sent SIGTERM.
    """
    if details.status == JobStatus.SUCCEEDED:
        return 0
    if details.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM
    code = details.driver_exit_code or 1
    return 128 - code if code < 0 else code


def _under_way(attempts: Mapping[int, JobDetails]) -> str | None:
    return next((str(each.submission_id) for each in attempts.values() if not each.status.is_terminal()), None)


def _attempts(client: JobSubmissionClient, job: Job) -> dict[int, JobDetails]:
    """Number -> what the server knows of the attempt."""
    found = {}
    for details in client.list_jobs():
        key, _, number = (details.submission_id or "").rpartition("-")
        if key == job.key and number.isdigit():
            found[int(number)] = details
    return found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
