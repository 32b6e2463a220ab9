"""What travels with a job: resolved specs, the files that they name, and a check that this stays small."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from indexmem.config.nightly import NightlySpec
from indexmem.config.paths import PATHS, with_benchmark_paths
from indexmem.config.reference import with_files
from indexmem.config.schema import Experiment
from indexmem.config.spec import as_said
from indexmem.errors import UserError
from indexmem.files import expanded, write_whole

SPEC = "spec.yaml"
MOST_BYTES = 100 * 2**20  # Ray's job server takes no larger request
LISTED_FILES = 10
UNWANTED = {"__pycache__", ".git", ".venv"}  # Ray leaves these out, too


@dataclass(frozen=True)
class Upload:
    """The folder in which a job runs."""

    specs: Mapping[str, Mapping[str, Any]]  # place -> content, resolved: no `extends`, paths as they are in the job
    files: Mapping[str, Path]  # place in the folder -> local file or folder

    @property
    def spec(self) -> Mapping[str, Any]:
        """The one that the job is started with."""
        return self.specs[SPEC]

    def write(self, folder: Path) -> None:
        """The files, and then the specs that name them."""
        for place, source in self.files.items():
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(*UNWANTED), dirs_exist_ok=True)
            else:
                shutil.copyfile(source, target)
        for place, spec in self.specs.items():
            write_whole(folder / place, yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True))


def plan_upload(experiment: Experiment, *, send_files: bool, below: Path = Path("/"), folder: Path = Path()) -> Upload:
    """The spec as a job in `folder` will read it and, with `send_files`, the local files `below` another that it names.

    A file's place in the job's folder has a hash of its content, so specs are equal only where the files are, too.
    Raises UserError for files too large to send and for a run root that would lie in the job's folder.
    """
    _check_root(experiment)
    spec = {"name": experiment.name} | as_said(experiment)
    if not send_files:
        return Upload({SPEC: spec}, {})
    named = [(section, key) for section, key in PATHS if (section, key) != ("run", "root")]
    places = [(section, key) for section, key in named if key in spec.get(section, {})]
    values = [spec[section][key] for section, key in places]
    values += [entry.params.get("path") for entry in experiment.grid.benchmarks]
    check_size(source for value in values for source in _local_files(value, below))
    files: dict[str, Path] = {}

    def place(value: Any) -> Any:
        if isinstance(value, list):
            return [place(item) for item in value]
        if isinstance(value, dict):
            return {name: place(item) if name == "name" else item for name, item in value.items()}
        for source in _local_files(value, below):
            name = str(folder / "files" / digest_of(source) / source.name)
            files[name] = source
            return name
        return value

    for section, key in places:
        spec[section][key] = place(spec[section][key])
    return Upload({SPEC: with_benchmark_paths(with_files(spec, place), place)}, files)


def plan_nightly_upload(nightly: NightlySpec, suites: Mapping[str, Experiment], *, send_files: bool) -> Upload:
    """The nightly spec beside those of its suites (name -> what it evaluates), which hold the suites' overrides.

    Raises UserError as `plan_upload` does.
    """
    _check_root(nightly.place)
    uploads = {name: plan_upload(experiment, send_files=send_files) for name, experiment in suites.items()}
    said = {"name": nightly.name} | as_said(nightly)
    for suite in said["suites"]:
        suite.pop("overrides", None)
        suite["spec"] = f"suite-{suite['name']}.yaml"
    specs = {f"suite-{name}.yaml": upload.spec for name, upload in uploads.items()}
    files = {place: source for upload in uploads.values() for place, source in upload.files.items()}
    return Upload({SPEC: said, **specs}, files)


def check_size(sources: Iterable[Path], most: int = MOST_BYTES) -> int:
    """Bytes of all files in `sources`, files or folders. Raises UserError with the largest when it is too much."""
    sizes = {path: path.stat().st_size for source in sources for path in _files_in(source)}
    total = sum(sizes.values())
    if total > most:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:LISTED_FILES]
        listing = "\n".join(f"  {sizes[path] / 2**20:8.1f} MiB  {path}" for path in largest)
        raise UserError(
            f"The job would carry {total / 2**20:.0f} MiB, and Ray takes {most / 2**20:.0f} MiB. The largest files:\n"
            f"{listing}\nPut them into a folder that the nodes share and name them there in the spec; "
            "--files shared sends none, where the nodes have them under the same paths."
        )
    return total


def _check_root(experiment: Experiment) -> None:
    root = experiment.run.root
    if root and not expanded(root).is_absolute():
        raise UserError(f"run.root={root} would lie in the job's own folder. Name a folder of the nodes: run.root=/…")


def _local_files(value: Any, below: Path) -> Iterator[Path]:
    """Files and folders among a setting's values, below a folder; loading has made their paths absolute."""
    for item in value if isinstance(value, list) else [value]:
        item = item.get("name") if isinstance(item, dict) else item  # of a text with settings
        if isinstance(item, str) and os.path.exists(item) and below in Path(item).parents:
            yield Path(item)


def _files_in(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
    for folder, names, files in os.walk(source):
        names[:] = sorted(set(names) - UNWANTED)
        yield from (Path(folder) / name for name in sorted(files) if (Path(folder) / name).is_file())


def digest_of(source: Path) -> str:
    """Hash of a file's content, or of all names and contents in a folder."""
    digest = hashlib.sha256()
    for path in _files_in(source):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(os.fsencode(path.relative_to(source)) + b"\0" + content)
    return digest.hexdigest()[:12]
