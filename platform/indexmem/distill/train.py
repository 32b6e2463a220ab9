"""Ray Train: the loop as DDP over a worker group, with checkpoints, restarts and resume.

python jobs/distill.py sweeps/smoke.yaml
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from indexmem.config.schema import DistillConfig, Experiment
from indexmem.distill.history import History
from indexmem.distill.loop import STATE, distill
from indexmem.distill.metrics import TrainingMetrics
from indexmem.distill.runs import DistillRun
from indexmem.distill.watched import watched
from indexmem.eviction.checkpoint import read_config

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class RayContext:
    """A rank of a Ray Train worker group. The file `stop` tells it to end early."""

    rank: int
    world: int
    stop: Path

    def wrap(self, module: nn.Module) -> nn.Module:
        # One bucket: the indexers are a few MB, so one all-reduce beats many.
        megabytes = sum(p.numel() * p.element_size() for p in module.parameters()) // 2**20 + 1
        return prepare_model(module, parallel_strategy_kwargs={"bucket_cap_mb": megabytes, "broadcast_buffers": False})

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else nullcontext()

    def stop_requested(self) -> bool:
        return self.rank == 0 and self.stop.exists()

    def mean(self, values: Tensor) -> Tensor:
        if self.world > 1:
            distributed.all_reduce(values)
        return values / self.world

    def restore(self) -> Path | None:
        checkpoint = ray.train.get_checkpoint()
        return None if checkpoint is None else Path(checkpoint.to_directory())

    def checkpoint(self, folder: Path | None, metrics: dict[str, Any]) -> None:
        ray.train.report(
            metrics,
            checkpoint=None if folder is None else Checkpoint.from_directory(folder),
            # Training goes on meanwhile; the run ends when the last upload has.
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=True,
        )

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="indexmem-checkpoint-"))


def _worker(config: dict[str, Any]) -> None:
    experiment = Experiment.model_validate(config["experiment"])
    torch.set_num_threads(max(1, config["cpus"]))
    context = ray.train.get_context()
    distill(
        experiment,
        RayContext(context.get_world_rank(), context.get_world_size(), Path(config["stop"])),
        History(config["history"], span=experiment.distill.checkpoint_every),
    )


def train(
    experiment: Experiment,
    run: DistillRun,
    on_progress: Callable[[Sequence[dict[str, Any]]], None],
    poll_seconds: float = PROGRESS_SECONDS,
) -> int | None:
    """Train to the end and leave the modules in `run.final`; a run already begun goes on from its last checkpoint.

    `on_progress` gets all metric rows so far, every `poll_seconds` and once at the end. A first SIGINT or SIGTERM ends
    training after the step under way, with a checkpoint to go on from; returns the signal's number then.
    """
    config = experiment.distill
    history = History(run.history, span=config.checkpoint_every)
    stop_file = run.folder / "stop"
    loop_config = {
        "experiment": experiment.model_dump(mode="json"),
        "history": str(run.history),
        "stop": str(stop_file),
        "cpus": 1,
    }
    storage = config.checkpoint_storage
    trainer = TorchTrainer(
        _worker,
        train_loop_config=loop_config,
        scaling_config=ScalingConfig(num_workers=_workers(config), use_gpu=config.use_gpu),  # type: ignore[arg-type]
        run_config=RunConfig(
            name="train",
            storage_path=str(run.folder) if storage is None else f"{storage.rstrip('/')}/{run.id}",
            failure_config=FailureConfig(  # type: ignore[call-arg]  # stubs of Train V1
                max_failures=config.max_failures, controller_failure_limit=3
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=config.keep_checkpoints),
        ),
    )
    metrics = TrainingMetrics(experiment, history.read())

    def look() -> None:
        rows = history.read()
        metrics(rows)
        on_progress(rows)

    result, stopped_by = watched(trainer.fit, stop_file, look, poll_seconds)
    assert result.checkpoint is not None, "a run that has ended has a checkpoint"
    with result.checkpoint.as_directory() as folder:
        # The history cannot tell: it may hold steps of an earlier start that came after its last checkpoint.
        if read_config(folder)["trained"]["step"] < config.schedule.steps:
            assert stopped_by is not None, "only a signal ends a run early"
            return stopped_by
        run.finish(Path(folder), leave_out=(STATE,))
    return None


def _workers(config: DistillConfig) -> int | tuple[int, int]:
    """How many workers to ask Ray Train for: a range makes the group elastic."""
    if config.min_workers is None or config.min_workers == config.workers:
        return config.workers
    return config.min_workers, config.workers
