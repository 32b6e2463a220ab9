"""`indexmem submit`: a verb as a job on a cluster, which goes on without the machine that sent it."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from indexmem.cluster.job import PACKAGE, Job, environment, job_of, parse_variables
from indexmem.cluster.packages import packages_of
from indexmem.cluster.upload import Upload, check_size, plan_upload
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.plugins.load import Found
from indexmem.plugins.named import own_code
from indexmem.progress.view import say
from indexmem.tracking.run_tags import DASHBOARD_VARIABLE

if TYPE_CHECKING:
    from indexmem.benchmarks.base import Benchmark


@dataclass(frozen=True)
class Submission:
    """How a job is sent."""

    address: str | None  # of the job server
    if_running: Literal["join", "refuse"]
    follow: bool
    send_files: bool
    send_code: bool
    installer: Literal["uv", "pip"] | None
    variables: Mapping[str, str]
    dry_run: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Submission:
        """As the command line says. Raises UserError for variables that are none."""
        return cls(
            address=arguments.address,
            if_running=arguments.if_running,
            follow=arguments.follow,
            send_files=arguments.files == "send",
            send_code=arguments.code == "send",
            installer=arguments.install,
            variables=parse_variables(arguments.env),
            dry_run=arguments.dry_run,
        )

    def environment(
        self, folder: Path, packages: Sequence[Path], variables: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Ray's `runtime_env` of the job in `folder`, with these packages and variables too."""
        return environment(
            folder,
            {**variables, **self.variables},
            packages=packages,
            send_code=self.send_code,
            installer=self.installer,
        )


def submit_spec(verb: str, experiment: Experiment, how: Submission) -> int:
    """Send the job unless it is under way, print its id, say how to watch it.

    With `follow` the exit code is that of the job. Raises UserError for what can be known to be wrong with the spec
    before anything is sent.
    """
    benchmarks = check_submitted(verb, experiment)
    upload = plan_upload(experiment, send_files=how.send_files)
    named = [*own_code(experiment).values(), *code_of_rows(benchmarks, stays=not how.send_files)]
    packages = packages_of(named) if how.send_code else ()
    size = check_size([*upload.files.values(), *packages, *([PACKAGE] if how.send_code else [])])
    job = job_of(verb, upload, packages)
    if how.dry_run:
        _say_plan(job, upload, size, how.environment(Path("."), packages))
        return 0

    from indexmem.cluster import job_server

    client = job_server.job_client(how.address)
    with tempfile.TemporaryDirectory(prefix="indexmem-") as folder:
        upload.write(Path(folder))
        brought = how.environment(Path(folder), packages, {DASHBOARD_VARIABLE: client.get_address()})
        attempt = job_server.start_attempt(client, job, brought, how.if_running)
    for package in packages:
        say(f"sent with it: {package}")
    print(attempt.submission, flush=True)
    _say_where(attempt.submission, attempt.new, client.get_address(), verb, experiment, how)
    return follow_job(how.address, attempt.submission) if how.follow else 0


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

    Raises UserError for methods and benchmarks that do not exist.
    """
    if verb == "sweep":
        from indexmem.sweep.space import Space

        Space.of(experiment)
    if verb == "distill":
        return ()
    from indexmem.benchmarks.registry import make_benchmarks
    from indexmem.evaluate.checks import check_budgets, check_eviction
    from indexmem.eviction.methods.registry import entry_of

    benchmarks = make_benchmarks(experiment.grid.benchmarks)
    for method in experiment.grid.methods:
        entry_of(method)
    check_eviction(experiment.eviction, experiment.indexer, experiment.grid.methods)
    check_budgets(experiment.eviction, experiment.grid)
    return benchmarks


def code_of_rows(benchmarks: Iterable[Benchmark], *, stays: bool) -> list[Found]:
    """What rows of data name themselves. `stays`: the nodes have the files under the same paths.

    Raises UserError for code in a file that the job would not find.
    """
    found = [each for benchmark in benchmarks for each in benchmark.named_by_rows()]
    for each in found:
        place, name = each.reference.place, each.reference.attribute
        if each.reference.in_file and not (stays and os.path.isabs(place)):
            raise UserError(
                f"Rows of a benchmark's file name the scorer {place}:{name}, and the job does not bring it. Write it "
                f"for all rows in the spec, params: {{metric: '{place}:{name}'}}, or name it as PACKAGE.MODULE:NAME."
            )
    return found


def _say_plan(job: Job, upload: Upload, size: int, brought: Mapping[str, Any]) -> None:
    say(f"{job.key}-N: {job.entrypoint}")
    say(f"  sends {size / 2**20:.1f} MiB{' with the package' if 'py_modules' in brought else ''}")
    for place, source in upload.files.items():
        say(f"  {source} as {place}")
    for module in brought.get("py_modules", ())[1:]:
        say(f"  {module} as an importable package")
    for key in sorted(brought.keys() & {"uv", "pip", "env_vars"}):
        say(f"  {key}: {brought[key]}")


def _say_where(submission: str, new: bool, address: str, verb: str, experiment: Experiment, how: Submission) -> None:
    say(f"{'submitted' if new else 'already under way'}: {submission} at {address}")
    say(f"  log:    ray job logs --follow --address {address} {submission}")
    say(f"  status: ray job status --address {address} {submission}")
    say(f"  stop:   ray job stop --address {address} {submission}")
    page = _mlflow_page(submission, verb, experiment, how)
    if page:
        say(f"  MLflow: {page}")


def _mlflow_page(submission: str, verb: str, experiment: Experiment, how: Submission) -> str | None:
    if not experiment.tracking.enabled:
        return None
    uri = experiment.tracking.uri or how.variables.get("MLFLOW_TRACKING_URI") or os.environ.get("MLFLOW_TRACKING_URI")
    from indexmem.tracking.links import job_page

    kind = {"distill": "distill", "sweep": "sweep"}.get(verb, "eval")
    page = job_page(uri, f"{experiment.tracking.experiment}/{kind}", submission) if uri else None
    return page or "in the run root on the cluster"
