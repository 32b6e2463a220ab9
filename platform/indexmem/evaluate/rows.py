"""What every result row says, finished or failed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any

import numpy as np

from indexmem.benchmarks.base import Benchmark, Sample
from indexmem.config.schema import Experiment
from indexmem.evaluate.version import computed_by
from indexmem.evaluate.work import Assignment, GridCell, Task
from indexmem.results.schema import FAILED, SCHEMA_VERSION
from indexmem.unicode import well_formed

ResultRow = dict[str, Any]


def failed_row(
    experiment: Experiment,
    sample: Sample,
    cell: GridCell,
    model_fingerprint: str,
    error: BaseException,
    provenance: Mapping[str, Any],
) -> ResultRow:
    """The row of a sample that could not be evaluated: it says why, and a restart tries it again."""
    return base_row(experiment, sample, cell, model_fingerprint, provenance) | {
        "status": FAILED,
        "error_class": type(error).__name__,
        "error_message": well_formed(str(error))[:2000] + _place(error),
    }


def _place(error: BaseException) -> str:
    """Where it was raised, ' (folder/file.py:12)'; nothing for our own errors, which explain themselves."""
    notes = [] if type(error).__module__.startswith("indexmem.") else getattr(error, "__notes__", [])
    return well_formed(f" ({'; '.join(notes)})") if notes else ""


def failed_rows(assignment: Assignment, tasks: Sequence[Task], error: BaseException) -> list[ResultRow]:
    """A row for each of the tasks' cells that says why it has no answer."""
    known = assignment.model_fingerprint, error, assignment.provenance
    return [failed_row(assignment.experiment, task.sample, cell, *known) for task in tasks for cell in task.cells]


class ScoreError(ValueError):
    """A benchmark's score is no share in [0, 1]."""


def scored(benchmark: Benchmark, prediction: str, sample: Sample) -> ResultRow:
    """The columns `score`, `other_scores` and `labels`. Raises ScoreError, or what the benchmark raises."""
    score, others = benchmark.score(prediction, sample), benchmark.other_scores(prediction, sample)
    labels = dict(sample.labels)
    if len(sample.references) > 1:  # does a right answer have all of them? The scorer knows
        labels["references"] = "any" if benchmark.score(sample.references[0], sample) == 1 else "all"
    for name, value in {"score": score, **others}.items():
        if not isinstance(value, Real) or not 0 <= value <= 1:
            raise ScoreError(f"benchmark '{benchmark.name}': '{name}' must be a number in [0, 1], got {value!r:.80}")
    return {
        "score": float(score),
        "labels": json.dumps(labels, sort_keys=True),
        "other_scores": json.dumps({name: float(value) for name, value in others.items()}, sort_keys=True),
    }


def scored_turns(benchmark: Benchmark, predictions: Sequence[str], sample: Sample) -> ResultRow:
    """`scored` of an answer to each of the sample's questions: the mean of their scores, and each by itself."""
    each = [scored(benchmark, text, asked) for text, asked in zip(predictions, sample.asked, strict=True)]
    if not sample.turns:
        return each[0]
    scores = {f"turn {number}": row["score"] for number, row in enumerate(each, start=1)}
    return each[0] | {"score": sum(scores.values()) / len(scores), "other_scores": json.dumps(scores)}


def scored_options(benchmark: Benchmark, likelihoods: Sequence[float], sample: Sample) -> ResultRow:
    """`scored` of the likeliest option (`acc` of lm-evaluation-harness), which becomes the column `prediction`; beside
    it `acc_norm`, by likelihood per character, and `probability`, what the options' probabilities give right ones."""
    by_character = [nats / max(1, len(option.strip())) for nats, option in zip(likelihoods, sample.options)]
    likeliest, normalised = (sample.options[int(np.argmax(by))] for by in (likelihoods, by_character))
    row = scored(benchmark, likeliest, sample)
    share = np.exp(np.asarray(likelihoods) - max(likelihoods))
    right = [benchmark.score(option, sample) for option in sample.options]
    others = {
        "acc_norm": float(benchmark.score(normalised, sample)),
        "probability": min(1.0, float(share @ right / share.sum())),
    }
    return row | {"prediction": likeliest, "other_scores": json.dumps(json.loads(row["other_scores"]) | others)}


def base_row(
    experiment: Experiment, sample: Sample, cell: GridCell, model_fingerprint: str, provenance: Mapping[str, Any]
) -> ResultRow:
    """Identity and provenance of a row; everything that is measured is still null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell.id,
        "sample_id": sample.id,
        "repeat": sample.repeat,
        "model": experiment.model.id,
        "model_fingerprint": model_fingerprint,
        "method": cell.method.label,
        "method_params": json.dumps(cell.method.params, sort_keys=True),
        "checkpoint": cell.checkpoint,
        "code": computed_by(cell.code),
        "budget": str(cell.budget),
        "ratio": cell.budget.ratio,
        "benchmark": cell.benchmark,
        "benchmark_build": cell.benchmark_build,
        "group": sample.own_group,
        "question_aware": sample.question_aware,
        "labels": json.dumps(sample.labels, sort_keys=True),
        "length": experiment.grid.length,
        "settings": json.dumps(settings_of(experiment), sort_keys=True),
        "references": [well_formed(text) for asked in sample.asked for text in asked.references],
        "git_commit": provenance["git_commit"],
        "versions": json.dumps(provenance["versions"], sort_keys=True),
        "host": provenance["host"],
        "created_at": datetime.now(UTC),
    } | dict.fromkeys(_MEASURED)


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """What decides a row's answer beside its other columns: those that every reader asks for, and what is not at its
    default. Rows of equal settings, model, build and code may be compared, in whichever store they are.
    """
    grid = experiment.grid
    asked = {"dtype": experiment.model.dtype, "seed": grid.seed, "sinks": experiment.eviction.sinks}
    limit = {} if grid.max_new_tokens is None else {"max_new_tokens": grid.max_new_tokens}
    return asked | limit | experiment.eviction.identity | grid.decoding.identity


# Null until measured, so that a failed row has every column.
_MEASURED = (
    *(
        "protocol",
        "prediction",
        "score",
        "other_scores",
        "fidelity_kl",
        "fidelity_top1",
        "truncated",
        "error_class",
        "error_message",
    ),
    *("context_tokens", "question_tokens", "new_tokens", "kept_min", "kept_mean", "kept_max"),
    *("decode_kept_mean", "decode_kept_max", "measured_ratio", "kv_bytes", "indexer_bytes", "memory_bytes"),
    *("full_kv_bytes", "prefill_seconds", "score_seconds", "decode_seconds", "decode_batch", "device"),
)
