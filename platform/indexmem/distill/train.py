"""Ray Train: the loop as DDP over a worker group, with checkpoints, restarts and resume.

python jobs/distill.py sweeps/smoke.yaml
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import Tensor, distributed, nn

from indexmem.config.schema import Experiment
from indexmem.distill.history import History
from indexmem.distill.loop import STATE, distill
from indexmem.distill.runs import DistillRun

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class RayContext:
    """A rank of a Ray Train worker group."""

    rank: int
    world: int

    def wrap(self, module: nn.Module) -> nn.Module:
        # One bucket: the indexers are a few MB, so one all-reduce beats many.
        megabytes = sum(p.numel() * p.element_size() for p in module.parameters()) // 2**20 + 1
        return prepare_model(module, parallel_strategy_kwargs={"bucket_cap_mb": megabytes, "broadcast_buffers": False})

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
            checkpoint_upload_mode=CheckpointUploadMode.SYNC,
        )

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="indexmem-checkpoint-"))


def _worker(config: dict[str, Any]) -> None:
    experiment = Experiment.model_validate(config["experiment"])
    torch.set_num_threads(max(1, config["cpus"]))
    context = ray.train.get_context()
    distill(
        experiment,
        RayContext(context.get_world_rank(), context.get_world_size()),
        History(config["history"], span=experiment.distill.checkpoint_every),
    )


def train(
    experiment: Experiment,
    run: DistillRun,
    on_progress: Callable[[Sequence[dict[str, Any]]], None],
    poll_seconds: float = PROGRESS_SECONDS,
) -> None:
    """Train to the end and leave the indexers in `run.final`; a run already begun goes on from its last checkpoint.

    `on_progress` gets all metric rows so far, every `poll_seconds` and once at the end.
    """
    config = experiment.distill
    history = History(run.history, span=config.checkpoint_every)
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"experiment": experiment.model_dump(mode="json"), "history": str(run.history), "cpus": 1},
        scaling_config=ScalingConfig(num_workers=config.workers, use_gpu=config.use_gpu),
        run_config=RunConfig(
            name="train",
            storage_path=str(run.folder),
            failure_config=FailureConfig(  # type: ignore[call-arg]  # stubs of Train V1
                max_failures=config.max_failures, controller_failure_limit=3
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=config.keep_checkpoints),
        ),
    )
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(poll_seconds):
            on_progress(history.read())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        result = trainer.fit()
    finally:
        stop.set()
        watcher.join()
    on_progress(history.read())
    assert result.checkpoint is not None, "a finished run has a checkpoint"
    with result.checkpoint.as_directory() as folder:
        run.finish(Path(folder), leave_out=(STATE,))
