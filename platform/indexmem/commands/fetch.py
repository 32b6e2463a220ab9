"""`indexmem fetch`: what a spec's jobs have left on a cluster, brought to this machine over the job server's port."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path

from indexmem.cluster.job import Job
from indexmem.cluster.upload import SPEC
from indexmem.commands.sending import Parcel
from indexmem.progress.view import say

SHOWN = 3  # pages; of nights the newest


def fetch_results(parcel: Parcel, target: Path, *, rows: bool = False, modules: bool = False) -> int:
    """Bring reports and tables below `target`, with `rows` and `modules` these too; says which report to open.

    `target` is then a run root itself. Raises UserError when there is nothing yet, or a file does not come; what came
    stays, and the same command brings the rest.
    """
    from indexmem.cluster import job_server
    from indexmem.cluster.fetch import Offer, fetch_files

    client = job_server.job_client(parcel.sending.address)
    name = parcel.upload.spec["name"]
    words = [SPEC, *(["--rows"] if rows else []), *(["--modules"] if modules else [])]
    # Every fetch is a job of its own: another one offers what there was when it began, and ends with its receiver.
    job = Job(
        f"fetch-{name}-{uuid.uuid4().hex[:12]}",
        f"python -m indexmem.commands.offer {' '.join(words)}",
        {"verb": "fetch", "spec": name},
    )
    address = client.get_address()
    submission = parcel.send(address, lambda brought: job_server.start_attempt(client, job, brought, "join")).submission
    try:
        fetched = fetch_files(Offer.of_job(client, submission), target, say)
    finally:
        with suppress(RuntimeError, OSError):  # it ends by itself in time
            client.stop_job(submission)
    say(
        f"{target}: {len(fetched.new)} files are new, {len(fetched.replaced)} took the place of others, "
        f"{len(fetched.kept)} were here"
    )
    for page in sorted(path for path in fetched.all if path.suffix == ".html")[-SHOWN:]:
        print(f"Report: {page.as_uri()}")
    return 0
