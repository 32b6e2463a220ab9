"""Samples on disk, by build hash: made once, read by every later plan with the same recipe.

A file holds the first samples of a build. It is complete or absent, and rebuilt when it cannot be read, when it holds
too few, or when it was written for another layout of `Sample`. The folder may be deleted at any time.
"""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample, Turn
from indexmem.locks.building import announce, exclusive, publish, scratch

LAYOUT = sorted(field.name for field in fields(Sample))
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError)

PROGRESS_SECONDS = 10.0
LARGE_BUILD = 8_000_000  # tokens from which on several processes are worth their start, which takes seconds


@dataclass(frozen=True)
class SampleCache:
    """The samples of any build, under `folder`."""

    folder: Path

    def samples(
        self, benchmarks: Sequence[Benchmark], builds: Mapping[str, str], count: int, build: BuildContext
    ) -> dict[str, tuple[Sample, ...]]:
        """The first `count` samples of each benchmark, by its name; `builds` maps names to build hashes.

        What is not on disk is made, each benchmark in a process of its own when that is much work. Raises what making
        samples raises.
        """
        paths = {benchmark.name: self.folder / f"{builds[benchmark.name]}.json.gz" for benchmark in benchmarks}
        found = {name: _read(path, count) for name, path in paths.items()}
        missing = [benchmark for benchmark in benchmarks if found[benchmark.name] is None]
        processes = min(len(missing), os.cpu_count() or 1)
        if processes > 1 and len(missing) * count * build.length >= LARGE_BUILD:
            announce(f"making {count} samples of each of {len(missing)} benchmarks, in {processes} processes")
            # spawn: a fork would inherit the tokenizer's threads in whatever state they are
            with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
                for made in [pool.submit(_make, paths[b.name], b, count, build) for b in missing]:
                    made.result()
        return {
            benchmark.name: found[benchmark.name] or _make(paths[benchmark.name], benchmark, count, build)
            for benchmark in benchmarks
        }


def _make(path: Path, benchmark: Benchmark, count: int, build: BuildContext) -> tuple[Sample, ...]:
    """Make and store samples, unless another process stored them while this one waited for the right to.

    Where they cannot be stored they are made all the same.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # the folder cannot be written to: said below
            stack.enter_context(exclusive(path))
        found = _read(path, count)
        if found is None:
            found = tuple(_with_progress(benchmark, count, build))
            try:
                _write(path, found, count)
            except OSError as error:
                announce(
                    f"the samples of {benchmark.name} are not kept for later runs: {error.strerror} ({path.parent})"
                )
        return found


def _with_progress(benchmark: Benchmark, count: int, build: BuildContext) -> Iterator[Sample]:
    """The samples, with a line on stderr now and then while they are made."""
    told = time.monotonic()
    for made, sample in enumerate(benchmark.samples(count, build), start=1):
        yield sample
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            announce(f"{benchmark.name}: {made} of {count} samples made")


def _read(path: Path, count: int) -> tuple[Sample, ...] | None:
    """The first `count` samples of a file; None when it does not have them. gzip's checksum covers all of it."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
        if content["layout"] != LAYOUT or content["asked"] < count:
            return None
        return tuple(map(_sample, content["samples"][:count]))
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        announce(f"{path.name} cannot be read ({type(error).__name__}); its samples are made again")
        return None


def _write(path: Path, samples: Sequence[Sample], asked: int) -> None:
    """`asked` may be more than there are: a data set can end before."""
    content = {"layout": LAYOUT, "asked": asked, "samples": [asdict(sample) for sample in samples]}
    with scratch(path) as folder:
        with gzip.open(folder / path.name, "wt", encoding="utf-8", compresslevel=1) as file:
            json.dump(content, file)
        publish(folder / path.name, path)


def _sample(stored: dict[str, Any]) -> Sample:
    turns = tuple(Turn(**turn | {"references": tuple(turn["references"])}) for turn in stored["turns"])
    tuples = {name: tuple(stored[name]) for name in ("references", "stop", "options")}
    return Sample(**stored | tuples | {"turns": turns})
