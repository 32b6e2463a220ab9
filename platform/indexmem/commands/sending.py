"""What `submit` and `fetch` share: what a job is given along, and how it is sent."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from indexmem.cluster.job import PACKAGE, environment, parse_variables
from indexmem.cluster.packages import packages_of
from indexmem.cluster.upload import Upload, check_size, plan_nightly_upload, plan_upload
from indexmem.config.load import load
from indexmem.config.nightly import NightlySpec
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.plugins.load import Found
from indexmem.plugins.named import own_code
from indexmem.tracking.run_tags import DASHBOARD_VARIABLE

if TYPE_CHECKING:
    from indexmem.benchmarks.base import Benchmark
    from indexmem.cluster.job_server import Attempt


@dataclass(frozen=True)
class Sending:
    """How a job is sent, and what it finds on the nodes."""

    address: str | None  # of the job server
    files: bool  # whether those that the spec names travel
    code: bool  # whether this package travels
    installer: Literal["uv", "pip"] | None
    variables: Mapping[str, str]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Sending:
        """As the command line says. Raises UserError for variables that are none."""
        return cls(
            address=arguments.address,
            files=arguments.files == "send",
            code=arguments.code == "send",
            installer=arguments.install,
            variables=parse_variables(arguments.env),
        )


@dataclass(frozen=True)
class Parcel:
    """What travels with a job."""

    upload: Upload
    packages: tuple[Path, ...]  # of somebody's own
    sending: Sending

    @classmethod
    def of_spec(cls, experiment: Experiment, sending: Sending, benchmarks: Iterable[Benchmark] = ()) -> Parcel:
        """`benchmarks`: those that the job will ask. Raises UserError for what cannot travel."""
        own = _own_packages([experiment], benchmarks, sending)
        return cls(plan_upload(experiment, send_files=sending.files), own, sending)

    @classmethod
    def of_nightly(
        cls,
        nightly: NightlySpec,
        suites: Mapping[str, Experiment],
        sending: Sending,
        benchmarks: Iterable[Benchmark] = (),
    ) -> Parcel:
        """`of_spec` for a nightly spec and those of its suites."""
        own = _own_packages(suites.values(), benchmarks, sending)
        return cls(plan_nightly_upload(nightly, suites, send_files=sending.files), own, sending)

    @property
    def size(self) -> int:
        """Bytes. Raises UserError for more than Ray takes."""
        return check_size([*self.upload.files.values(), *self.packages, *([PACKAGE] if self.sending.code else [])])

    def environment(self, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
        """Ray's `runtime_env` of the job in `folder`, with `variables` where the user has set no others."""
        sending = self.sending
        return environment(
            folder,
            {**variables, **sending.variables},
            packages=self.packages,
            send_code=sending.code,
            installer=sending.installer,
        )

    def send(self, address: str, start: Callable[[Mapping[str, Any]], Attempt]) -> Attempt:
        """`start` the job with its environment, while the folder exists that it is uploaded from.

        `address`: of the dashboard, as people reach it.
        """
        with tempfile.TemporaryDirectory(prefix="indexmem-") as folder:
            self.upload.write(Path(folder))
            return start(self.environment(Path(folder), {DASHBOARD_VARIABLE: address}))


def suites_of(nightly: NightlySpec) -> dict[str, Experiment]:
    """Name of each suite -> its spec, overrides included. Raises UserError for a spec that is not valid."""
    return {suite.name: load(suite.spec, suite.overrides) for suite in nightly.suites}


def _own_packages(
    experiments: Iterable[Experiment], benchmarks: Iterable[Benchmark], sending: Sending
) -> tuple[Path, ...]:
    named = [found for experiment in experiments for found in own_code(experiment).values()]
    named += _code_of_rows(benchmarks, stays=not sending.files)
    return packages_of(named) if sending.code else ()


def _code_of_rows(benchmarks: Iterable[Benchmark], *, stays: bool) -> list[Found]:
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
