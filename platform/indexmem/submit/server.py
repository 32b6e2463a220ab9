"""Ray's job server: every attempt at a job is there once, whoever submits it and however often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ray.job_submission import JobDetails, JobSubmissionClient

from indexmem.errors import UserError
from indexmem.submit.job import Job


@dataclass(frozen=True)
class Attempt:
    submission: str
    new: bool  # False: it was under way already


def connect(address: str | None) -> JobSubmissionClient:
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


def submit(
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
            current = running(client, job)
            if current is None:
                raise UserError(f"The job server did not take the job: {_first_line(error)}") from None
    if if_running == "refuse":
        raise UserError(f"{current} is under way with the same spec. --if-running join follows it instead.")
    return Attempt(current, new=False)


def running(client: JobSubmissionClient, job: Job) -> str | None:
    """Id of the attempt that has not ended."""
    return _under_way(_attempts(client, job))


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
