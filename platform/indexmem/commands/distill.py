"""`indexmem distill`: from a checked spec to trained modules."""

from __future__ import annotations

from signal import Signals

from indexmem.cluster.connection import check_resources, ray_cluster, wait_for_nodes
from indexmem.commands.training import (
    TrainingWatch,
    describe_losses,
    describe_modules,
    mirror_training,
)
from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.checks import check_distill
from indexmem.distill.estimate import training_time
from indexmem.distill.runs import runs_folder
from indexmem.eviction.checkpoint import read_config
from indexmem.fetching import noted
from indexmem.files import check_writable
from indexmem.progress.view import ProgressView, say
from indexmem.tracking.mlflow_sink import MlflowSink


def distill_spec(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Train the spec's indexer, or find it finished. Prints progress, publishes the run, says where the result is."""
    lacking: list[str] = []
    run = None
    with noted(lacking):
        run = check_distill(experiment)
    config = experiment.distill
    say(
        f"distill {experiment.name}: {config.schedule.steps} steps x {config.workers} workers x "
        f"{config.batch_size * config.accumulate} x {config.length} tokens on {experiment.model.id} -> "
        f"{run.folder if run else runs_folder(experiment)}"
    )
    for line in describe_modules(experiment):
        say(f"  {line}")
    for line in lacking:
        say(f"  not checked: {line}")
    if dry_run:
        if run is not None and run.finished:
            say(f"  already trained: {run.final}")
        else:
            say(f"  time: {training_time(experiment, run)}")
        return 0
    assert run is not None, "only a dry run does without what is not at hand"
    check_writable(run_root(experiment))
    sink = MlflowSink.open(experiment)
    if run.finished:
        say(f"already trained: {run.final}")
    else:
        from indexmem.distill.train import train

        view = ProgressView.open(f"{experiment.name} training")
        with view, ray_cluster(address, cpus=None if address else config.workers):
            gpus = 1 if config.use_gpu else 0
            workers = config.min_workers or config.workers
            wait_for_nodes(workers, 1, gpus, experiment.run.wait_for_nodes, say)
            check_resources(workers, 1, gpus)
            stopped_by = train(experiment, run, TrainingWatch(experiment, run, sink, view))
        if stopped_by is not None:
            say(f"Stopped by {Signals(stopped_by).name}. The same command goes on from the step under way then.")
            return 128 + stopped_by
    history = run.read_history()
    mirror_training(experiment, run, sink, history)
    trained = read_config(run.final)["trained"]
    say(f"trained {trained['step']} steps, {describe_losses(history)}: {run.final}")
    return 0
