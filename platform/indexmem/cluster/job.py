"""A job as Ray's job server takes it: its name, its command, and the environment that it brings along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

import indexmem
from indexmem.cluster.upload import SPEC, Upload, digest_of
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.provenance import COMMIT_VARIABLE, provenance

PACKAGE = Path(indexmem.__file__).parent
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Job:
    """What is done, without where and when: equal work has an equal key."""

    key: str  # attempt n has the submission id "<key>-<n>"
    entrypoint: str
    metadata: Mapping[str, str]


def job_of(verb: str, upload: Upload, packages: Sequence[Path] = ()) -> Job:
    """The job that does `verb` with the uploaded specs and packages of somebody's own."""
    name = upload.spec["name"]
    key = f"{verb}-{name}-{content_hash([verb, dict(upload.specs), *map(digest_of, packages)], 12)}"
    words = "nightly run" if verb == "nightly" else verb
    return Job(key, f"python -m indexmem {words} {SPEC}", {"verb": verb, "spec": name})


def environment(
    folder: Path,
    variables: Mapping[str, str],
    *,
    packages: Sequence[Path] = (),
    send_code: bool = True,
    installer: Literal["uv", "pip"] | None = None,
) -> dict[str, Any]:
    """Ray's `runtime_env` of a job that runs in `folder`.

    With `send_code` this package travels, and its commit with it, since .git does not; so do `packages`, which are
    somebody's own. `installer` puts the package's
    dependencies on nodes that lack them, Ray itself excepted: it must be the nodes' own.
    """
    brought: dict[str, Any] = {"working_dir": str(folder)}
    variables = dict(variables)
    if send_code:
        brought["py_modules"] = [str(PACKAGE), *map(str, packages)]
        commit = provenance()["git_commit"]
        if commit:
            variables.setdefault(COMMIT_VARIABLE, commit)
    if installer:
        brought[installer] = dependencies()
    return brought | ({"env_vars": variables} if variables else {})


def dependencies() -> list[str]:
    """What a job needs, `indexmem[all]` without Ray. Raises UserError when the package is not installed."""
    try:
        stated = [Requirement(text) for text in requires("indexmem") or []]
    except PackageNotFoundError:
        raise UserError(
            "The package is not installed here, so its dependencies are unknown: leave --install out."
        ) from None
    needed = [each for each in stated if each.marker is None or each.marker.evaluate({"extra": "all"})]
    return sorted(str(each).partition(";")[0].strip() for each in needed if each.name not in ("ray", "indexmem"))


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words as a mapping. Raises UserError for anything else."""
    for text in texts:
        name, separator, _ = text.partition("=")
        if not separator or not VARIABLE.fullmatch(name):
            raise UserError(
                f"--env {text} is not of the form NAME=VALUE. Example: --env INDEXMEM_HOME=/shared/indexmem"
            )
    return {name: value for name, _, value in (text.partition("=") for text in texts)}
