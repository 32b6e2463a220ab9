"""Where the report's numbers come from, and what went wrong on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from indexmem.config.schema import Experiment
from indexmem.report.text import counted
from indexmem.results.schema import FAILED

MAX_FAILURES = 50
MAX_MESSAGE = 600


@dataclass(frozen=True)
class Failure:
    """Failed rows of one error class in one method; `message` is the first one's."""

    method: str
    error_class: str
    message: str
    count: int
    benchmarks: str


@dataclass(frozen=True)
class Origin:
    facts: tuple[tuple[str, str], ...]
    spec: str  # the experiment as YAML, without what is at its default
    whole_spec: str


def failures(rows: pa.Table) -> tuple[Failure, ...]:
    """Failed rows grouped by method and error class, most frequent first, at most MAX_FAILURES groups."""
    failed = rows.filter(pc.equal(rows["status"], FAILED))
    # The first message of a group needs the rows' order, which threads do not keep.
    grouped = failed.group_by(["method", "error_class"], use_threads=False).aggregate(
        [("error_message", "first"), ("sample_id", "count"), ("benchmark", "distinct")]
    )
    found = [
        Failure(
            method=item["method"],
            error_class=item["error_class"] or "unknown error",
            message=(item["error_message_first"] or "")[:MAX_MESSAGE],
            count=item["sample_id_count"],
            benchmarks=", ".join(sorted(item["benchmark_distinct"])),
        )
        for item in grouped.to_pylist()
    ]
    return tuple(sorted(found, key=lambda f: (-f.count, f.method, f.error_class))[:MAX_FAILURES])


def origin(experiment: Experiment, rows: pa.Table) -> Origin:
    """Facts for the last section. A column with several values shows all of them: a mix must be seen."""
    started, ended = pc.min(rows["created_at"]).as_py(), pc.max(rows["created_at"]).as_py()
    samples = rows.group_by(["benchmark"]).aggregate([("sample_id", "count_distinct"), ("benchmark_build", "distinct")])
    counts = [
        f"{item['benchmark']}: {counted(item['sample_id_count_distinct'], 'sample')}, build {', '.join(builds)}"
        for item in sorted(samples.to_pylist(), key=lambda item: item["benchmark"])
        if (builds := sorted(item["benchmark_build_distinct"]))
    ]
    facts = (
        ("Model", _all(rows, "model")),
        ("Weights fingerprint", _all(rows, "model_fingerprint")),
        ("Checkpoints", _all(rows, "checkpoint") or "none (training-free methods only)"),
        ("Prompt length", f"{_all(rows, 'length')} tokens"),
        ("Benchmarks", "; ".join(counts)),
        ("Protocol of prompts and scores", _all(rows, "protocol")),
        ("Protocol of eviction", f"grid.protocol={experiment.grid.protocol}"),
        ("Seeds", f"samples {experiment.grid.seed}, distillation {experiment.distill.seed}"),
        ("Rows", f"{counted(rows.num_rows, 'row')} in {counted(pc.count_distinct(rows['cell_id']).as_py(), 'cell')}"),
        ("Commit", _all(rows, "git_commit")),
        ("Versions", "; ".join(_versions(text) for text in _distinct(rows, "versions"))),
        ("Hardware", _all(rows, "device")),
        ("Hosts", _all(rows, "host")),
        ("Evaluated", f"{started:%Y-%m-%d %H:%M} to {ended:%Y-%m-%d %H:%M} UTC" if started else "unknown"),
    )
    return Origin(facts, _as_yaml(experiment, exclude_defaults=True), _as_yaml(experiment))


def _as_yaml(experiment: Experiment, *, exclude_defaults: bool = False) -> str:
    told = experiment.model_dump(mode="json", exclude_defaults=exclude_defaults)
    return yaml.safe_dump(told, sort_keys=False, allow_unicode=True)


def _distinct(rows: pa.Table, column: str) -> list[str]:
    return sorted(str(value) for value in pc.unique(rows[column]).to_pylist() if value not in (None, ""))


def _all(rows: pa.Table, column: str) -> str:
    return ", ".join(_distinct(rows, column))


def _versions(text: str) -> str:
    return ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
