"""From a checked spec to a model folder, and from there into the package."""

from __future__ import annotations

from pathlib import Path

from indexmem.errors import UserError
from indexmem.models.assets import SHIPPED, TESTBED
from indexmem.progress.view import say
from indexmem.texts.documents import load_texts
from indexmem_testbed.card import ship
from indexmem_testbed.config import PretrainingSpec
from indexmem_testbed.corpus import write_documents
from indexmem_testbed.documents import TASKS
from indexmem_testbed.local import FINAL, train
from indexmem_testbed.model import make_model, parameter_count
from indexmem_testbed.start import load_start, start_folder
from indexmem_testbed.stream import TEXT_TASK

STOPPED = 3  # exit code: not finished, to be called again


def run_pretraining(
    experiment: PretrainingSpec, folder: Path, stop_after: float | None = None, *, dry_run: bool = False
) -> int:
    """Train in `folder`; exit code 3 when it was stopped before the end, to be called again."""
    check_pretrain(experiment)
    say(f"pretrain {experiment.name}: {describe(experiment)} -> {folder}")
    if dry_run:
        return 0
    final = train(experiment.pretrain, folder, stop_after)
    if final is None:
        say("Stopped before the end, with a checkpoint. The same command goes on from there.")
        return STOPPED
    say(f"trained: {final}")
    return 0


def ship_model(folder: Path, scores: Path | None) -> int:
    """Put what a training in `folder` has made into this package."""
    say(f"shipped: {ship(folder / FINAL, SHIPPED / TESTBED, scores)}")
    return 0


def make_documents(experiment: PretrainingSpec, path: Path, count: int, length: int, *, dry_run: bool = False) -> int:
    """Write documents of the spec's mixture as a corpus to distill on."""
    check_pretrain(experiment)
    if dry_run:
        say(f"{count} documents -> {path}")
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"{count} documents: {write_documents(experiment.pretrain, count, length, path)}")
    return 0


def describe(experiment: PretrainingSpec) -> str:
    """For example '5,770,496 parameters, 4000 steps x 65,536 tokens'."""
    config = experiment.pretrain
    return f"{parameter_count(config.architecture):,} parameters, {config.steps} steps x {config.step_tokens:,} tokens"


def check_pretrain(experiment: PretrainingSpec) -> None:
    """All that can be wrong with the section, found before anything is trained. Raises UserError."""
    config = experiment.pretrain
    unknown = sorted(set(config.mixture) - {*TASKS, TEXT_TASK})
    if unknown:
        raise UserError(
            f"pretrain.mixture names {', '.join(unknown)}. Expected any of {', '.join(sorted({*TASKS, TEXT_TASK}))}."
        )
    if not config.texts:
        raise UserError("pretrain.texts is empty. Example: pretrain.texts='[essays-train]'")
    load_texts([*config.texts, config.heldout])
    if config.start_from is not None:
        load_start(make_model(config.architecture, config.seed), start_folder(config.start_from))
