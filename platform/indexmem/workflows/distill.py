"""`indexmem distill`: from a checked spec to trained modules."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import read_config
from indexmem.models.backbone import inspect
from indexmem.models.texts import load_texts
from indexmem.runtime import check_resources, cluster
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.workflows.terminal import say
from indexmem.workflows.training import (
    TrainingMeter,
    describe_losses,
    describe_modules,
    publish_training,
    read_history,
)


def distill(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Train the spec's indexer, or find it finished. Prints progress, publishes the run, says where the result is."""
    run = check_distill(experiment)
    config = experiment.distill
    say(
        f"distill {experiment.name}: {config.schedule.steps} steps x {config.workers} workers x {config.batch_size} x "
        f"{config.length} tokens on {experiment.model.id} -> {run.folder}"
    )
    for line in describe_modules(experiment):
        say(f"  {line}")
    if dry_run:
        return 0
    sink = MlflowSink.open(experiment)
    if run.finished:
        say(f"already trained: {run.final}")
    else:
        from indexmem.distill.train import train

        meter = TrainingMeter(experiment, run, sink)
        with cluster(address, cpus=None if address else config.workers):
            check_resources(config.workers, 1, 1 if config.use_gpu else 0)
            train(experiment, run, meter)
    history = read_history(experiment, run)
    publish_training(experiment, run, sink, history)
    trained = read_config(run.final)["trained"]
    say(f"trained {trained['step']} steps, {describe_losses(history)}: {run.final}")
    return 0


def check_distill(experiment: Experiment) -> DistillRun:
    """All that can be wrong with a training spec, found before Ray starts."""
    geometry = inspect(experiment.model)
    config = experiment.distill
    if config.length > geometry.max_positions:
        raise UserError(
            f"distill.length={config.length} is more than the model's context of {geometry.max_positions} tokens. "
            f"Use distill.length={geometry.max_positions} or less."
        )
    if config.length <= experiment.target.sinks + 1:
        raise UserError(
            f"distill.length={config.length} leaves no tokens after target.sinks={experiment.target.sinks}."
        )
    if not config.texts:
        raise UserError("distill.texts is empty. Example: distill.texts='[king-james]'")
    load_texts(config.texts)
    return DistillRun.of(experiment)
