"""From a checked spec to a model folder, and from there into the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from indexmem.config.spec import flatten, run_root
from indexmem.distill.history import History
from indexmem.errors import UserError
from indexmem.files import check_writable
from indexmem.models.assets import SHIPPED, TESTBED
from indexmem.progress.view import ProgressView, say
from indexmem.texts.documents import load_texts
from indexmem_testbed.card import ship
from indexmem_testbed.config import PretrainingSpec
from indexmem_testbed.corpus import write_documents
from indexmem_testbed.documents import TASKS
from indexmem_testbed.local import FINAL, train_locally
from indexmem_testbed.model import make_model, parameter_count
from indexmem_testbed.progress import pretraining_status
from indexmem_testbed.runs import PretrainRun
from indexmem_testbed.start import load_start, start_folder
from indexmem_testbed.stream import TEXT_TASK

STOPPED = 3  # exit code: not finished, to be called again


def run_pretraining(experiment: PretrainingSpec, *, dry_run: bool = False, address: str | None = None) -> int:
    """Train the spec's model on Ray, or find it finished. Prints progress, publishes the run, says where it is."""
    check_pretrain(experiment)
    run, config = PretrainRun.of(experiment), experiment.pretrain
    say(f"pretrain {experiment.name}: {describe(experiment)} -> {run.folder}")
    if dry_run:
        return 0
    check_writable(run_root(experiment))
    from indexmem.cluster.connection import check_resources, ray_cluster, wait_for_nodes
    from indexmem.tracking.mlflow_sink import MlflowSink

    sink = MlflowSink.open(experiment)
    if run.final.is_dir():
        say(f"already trained: {run.final}")
    else:
        from indexmem_testbed.train import train

        view = ProgressView.open(f"{experiment.name} training")
        cpus, gpus = 1 + config.loaders, int(config.use_gpu)

        def watch(history: Sequence[dict[str, Any]]) -> None:
            view(pretraining_status(config, history))

        with view, ray_cluster(address, cpus=None if address else config.workers * cpus):
            wait_for_nodes(config.workers, cpus, gpus, experiment.run.wait_for_nodes, say)
            check_resources(config.workers, cpus, gpus)
            stopped_by = train(experiment, run, watch)
        if stopped_by is not None:
            say(f"Stopped by {Signals(stopped_by).name}. The same command goes on from the step under way then.")
            return 128 + stopped_by
    if sink is not None:
        rows = History(run.history, span=config.checkpoint_every).read()
        where = sink.publish_distill(experiment, run.id, rows, finished=True, params=flatten(config, "pretrain."))
        if where:
            say(f"MLflow: {where}")
    say(f"trained: {run.final}")
    return 0


def run_without_ray(
    experiment: PretrainingSpec, folder: Path, minutes: float | None, stop_after: float | None, *, dry_run: bool = False
) -> int:
    """Train without Ray in `folder`; exit code 3 when it was stopped before the end, to be called again."""
    check_pretrain(experiment)
    say(f"pretrain {experiment.name}: {describe(experiment)} -> {folder}")
    if dry_run:
        return 0
    final = train_locally(experiment.pretrain, folder, minutes, stop_after)
    if final is None:
        say("Stopped before the end, with a checkpoint. The same command goes on from there.")
        return STOPPED
    say(f"trained: {final}")
    return 0


def ship_model(experiment: PretrainingSpec, folder: Path | None, scores: Path | None) -> int:
    """Put what the spec, or a local training in `folder`, has trained into this package."""
    source = folder / FINAL if folder is not None else PretrainRun.of(experiment).final
    say(f"shipped: {ship(source, SHIPPED / TESTBED, scores)}")
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
    """All that can be wrong with the section, found before Ray or a GPU is taken. Raises UserError."""
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
