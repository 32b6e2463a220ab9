"""Ray Train: the pre-training loop as DDP over a worker group, with checkpoints, restarts and resume.

python jobs/pretrain_testbed.py sweeps/testbed.yaml
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device

from indexmem.distill.history import History
from indexmem.distill.train import PROGRESS_SECONDS, RayContext, watched
from indexmem.files import copy_folder
from indexmem_testbed.config import PretrainConfig, PretrainingSpec
from indexmem_testbed.loop import new_module, pretrain
from indexmem_testbed.model import STATE, read_trained
from indexmem_testbed.runs import PretrainRun
from indexmem_testbed.speed import prepare


def _worker(settings: dict[str, Any]) -> None:
    config = PretrainConfig.model_validate(settings["pretrain"])
    torch.set_num_threads(1)
    context = ray.train.get_context()
    module = new_module(config, get_device())
    if config.use_gpu:
        prepare(module, config, context.get_world_size())
    pretrain(
        config,
        RayContext(context.get_world_rank(), context.get_world_size(), Path(settings["stop"])),
        History(settings["history"], span=config.checkpoint_every),
        module,
    )


def train(
    experiment: PretrainingSpec, run: PretrainRun, on_progress: Callable[[Sequence[dict[str, Any]]], None]
) -> int | None:
    """Train to the end and leave the model in `run.final`; a run already begun goes on from its last checkpoint.

    `on_progress` gets all metric rows so far, now and then. A first SIGINT or SIGTERM ends training after the step
    under way, with a checkpoint to go on from; returns the signal's number then.
    """
    config = experiment.pretrain
    history = History(run.history, span=config.checkpoint_every)
    stop_file = run.folder / "stop"
    settings = {"pretrain": config.model_dump(mode="json"), "history": str(run.history), "stop": str(stop_file)}
    resources = {"CPU": 1 + config.loaders, "GPU": int(config.use_gpu)}
    trainer = TorchTrainer(
        _worker,
        train_loop_config=settings,
        scaling_config=ScalingConfig(
            num_workers=config.workers, use_gpu=config.use_gpu, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name="train",
            storage_path=str(run.folder),
            failure_config=FailureConfig(  # type: ignore[call-arg]  # stubs of Train V1
                max_failures=config.max_failures, controller_failure_limit=3
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=config.keep_checkpoints),
        ),
    )
    result, stopped_by = watched(trainer.fit, stop_file, lambda: on_progress(history.read()), PROGRESS_SECONDS)
    assert result.checkpoint is not None, "a run that has ended has a checkpoint"
    with result.checkpoint.as_directory() as folder:
        if read_trained(Path(folder))["step"] < config.steps:
            assert stopped_by is not None, "only a signal ends a run early"
            return stopped_by
        copy_folder(Path(folder), run.final, leave_out=(STATE,))
    return None
