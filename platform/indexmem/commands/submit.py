"""`indexmem submit`: a verb as a job on a cluster, which goes on without the machine that sent it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from indexmem.cluster.job import Job, job_of
from indexmem.commands.sending import Parcel, Sending, suites_of
from indexmem.config.nightly import NightlySpec
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.progress.view import say
from indexmem.tracking.run_tags import dashboard_page

if TYPE_CHECKING:
    from indexmem.benchmarks.base import Benchmark

HAS_RESULTS = (0, 1, 3, 4)  # exit codes of jobs that went through: done, failed rows, a regression, not ranked


@dataclass(frozen=True)
class Submission:
    """What is done with a job besides sending it."""

    sending: Sending
    if_running: Literal["join", "refuse"]
    follow: bool
    fetch_to: Path | None  # where results come to once it has ended
    dry_run: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Submission:
        """As the command line says. Raises UserError for variables that are none."""
        fetch_to = Path(arguments.to).expanduser().absolute() if arguments.fetch else None
        sending = Sending.of(arguments)
        return cls(sending, arguments.if_running, arguments.follow or arguments.fetch, fetch_to, arguments.dry_run)


def submit_spec(verb: str, experiment: Experiment, how: Submission) -> int:
    """Send the job unless it is under way, print its id, say how to watch it.

    With `follow` the exit code is that of the job. Raises UserError for what can be known to be wrong with the spec
    before anything is sent.
    """
    benchmarks = check_submitted(verb, experiment)
    return _submit(verb, experiment, Parcel.of_spec(experiment, how.sending, benchmarks), how)


def submit_nightly(nightly: NightlySpec, how: Submission) -> int:
    """`submit_spec` for one night of a nightly spec, with the specs of its suites."""
    suites = suites_of(nightly)
    benchmarks: list[Benchmark] = []
    for suite in nightly.suites:
        try:
            for verb in suite.verbs:
                benchmarks += check_submitted(verb, suites[suite.name])
        except UserError as error:
            raise UserError(f"suite '{suite.name}': {error}") from None
    return _submit("nightly", nightly.place, Parcel.of_nightly(nightly, suites, how.sending, benchmarks), how)


def follow_job(address: str | None, submission: str) -> int:
    """Print a job's log until it ends; returns its exit code. Ctrl-C ends the watching, not the job."""
    from indexmem.cluster import job_server

    try:
        details = job_server.follow(
            job_server.job_client(address), submission, lambda text: print(text, end="", flush=True)
        )
    except KeyboardInterrupt:
        say(f"\n{submission} goes on without this terminal. The same command follows it again.")
        return 130
    say(f"{submission}: {str(details.status).lower()}")
    return job_server.job_exit_code(details)


def check_submitted(verb: str, experiment: Experiment) -> Sequence[Benchmark]:
    """The benchmarks that are asked. The model need not be on this machine.

    Imports nothing heavy for what ships with the package: sending must not wait for torch. Raises UserError for methods
    and benchmarks that do not exist.
    """
    if verb == "sweep":
        from indexmem.sweep.space import Space

        Space.of(experiment)
    if verb == "distill":
        return ()
    from indexmem.benchmarks.registry import make_benchmarks
    from indexmem.evaluate.settings import (
        check_budgets,
        check_eviction,
        check_made,
        check_methods,
        learned_methods,
        trains_first,
    )

    benchmarks = make_benchmarks(experiment.grid.benchmarks)
    check_methods(experiment.grid.methods)
    check_eviction(experiment.eviction, experiment.indexer, experiment.grid.methods)
    check_budgets(experiment.eviction, experiment.grid)
    check_made(experiment)
    if verb == "eval" and trains_first(experiment):
        say(
            f"  {', '.join(learned_methods(experiment))}: modules that this spec trains. Where they are not trained on "
            "the cluster yet, the job ends at once with that sentence; `indexmem submit run SPEC` trains them first"
        )
    return benchmarks


def _submit(verb: str, place: Experiment, parcel: Parcel, how: Submission) -> int:
    job = job_of(verb, parcel.upload, parcel.packages)
    size = parcel.size
    if how.dry_run:
        _say_plan(job, parcel, size)
        return 0

    from indexmem.cluster import job_server

    client = job_server.job_client(how.sending.address)
    address = client.get_address()
    attempt = parcel.send(address, lambda brought: job_server.start_attempt(client, job, brought, how.if_running))
    for package in parcel.packages:
        say(f"sent with it: {package}")
    print(attempt.submission, flush=True)
    _say_how_to_watch(attempt.submission, attempt.new, address)
    code = follow_job(how.sending.address, attempt.submission) if how.follow else 0
    pages = {"job": dashboard_page(address, attempt.submission)}
    pages |= {"MLflow": page} if (page := _mlflow_page(attempt.submission, verb, place, how.sending)) else {}
    for name, page in pages.items():
        say(f"  {name}: {page}")
    if how.fetch_to is not None and code in HAS_RESULTS:
        from indexmem.commands.fetch import fetch_results

        fetch_results(parcel, how.fetch_to)
    return code


def _say_plan(job: Job, parcel: Parcel, size: int) -> None:
    brought = parcel.environment(Path("."), {})
    say(f"{job.key}-N: {job.entrypoint}")
    say(f"  sends {size / 2**20:.1f} MiB{' with the package' if 'py_modules' in brought else ''}")
    for place, source in parcel.upload.files.items():
        say(f"  {source} as {place}")
    for module in brought.get("py_modules", ())[1:]:
        say(f"  {module} as an importable package")
    for key in sorted(brought.keys() & {"uv", "pip", "env_vars"}):
        say(f"  {key}: {brought[key]}")


def _say_how_to_watch(submission: str, new: bool, address: str) -> None:
    say(f"{'submitted' if new else 'already under way'}: {submission} at {address}")
    say(f"  log:    ray job logs --follow --address {address} {submission}")
    say(f"  status: ray job status --address {address} {submission}")
    say(f"  stop:   ray job stop --address {address} {submission}")


def _mlflow_page(submission: str, verb: str, place: Experiment, sending: Sending) -> str | None:
    """Where the job's runs can be seen, if a server is known here; that of the nodes may be another."""
    if not place.tracking.enabled:
        return None
    uri = place.tracking.uri or sending.variables.get("MLFLOW_TRACKING_URI") or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return None
    from indexmem.tracking.links import job_page

    kind = verb if verb in ("distill", "sweep", "nightly") else "eval"
    return job_page(uri, f"{place.tracking.experiment}/{kind}", submission)
