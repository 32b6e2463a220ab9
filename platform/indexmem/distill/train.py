"""Ray Train: the loop as DDP over a worker group, with checkpoints, restarts and resume.

python jobs/distill.py sweeps/smoke.yaml
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from indexmem.extras import missing

try:
    import ray.train
    from ray.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer, prepare_model
except ImportError:
    raise missing("ray", "ray") from None

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from indexmem.config.distill import DistillConfig
from indexmem.config.schema import Experiment
from indexmem.distill.history import History, MetricRow, by_module, step_tokens
from indexmem.distill.loop import STATE, distill
from indexmem.distill.runs import DistillRun
from indexmem.eviction.checkpoint import read_config
from indexmem.progress.ray_metrics import counter, gauge
from indexmem.signals import StopSignals

PROGRESS_SECONDS = 2.0

T = TypeVar("T")


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


def watched(call: Callable[[], T], stop: Path, look: Callable[[], None], seconds: float) -> tuple[T, int | None]:
    """What `call` returns, and the signal that came, if any. `look` is called every so many seconds, and at the end.

    A first SIGINT or SIGTERM makes the file `stop`, upon which the call is to end. It runs in a thread, since Ray Train
    takes SIGINT for itself where it is called in the main one; a daemon, so that a second signal does not wait for it.
    """
    stop.parent.mkdir(parents=True, exist_ok=True)
    stop.unlink(missing_ok=True)
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    with StopSignals() as signals:
        threading.Thread(target=run, daemon=True).start()
        while not wait([future], timeout=seconds).done:
            if signals.received is not None:
                stop.touch()
            look()
        result = future.result()
    look()
    return result, signals.received


class TrainingMetrics:
    """Set by the driver from the metric rows that training writes. `run` is the experiment's name."""

    def __init__(self, experiment: Experiment, history: Sequence[MetricRow]) -> None:
        """history: the rows of earlier starts, whose tokens are not counted again."""
        self._run = {"run": experiment.name}
        self._step_tokens, self._counted = step_tokens(experiment), _steps(history)
        self._step, self._tokens = gauge("indexmem_training_step"), counter("indexmem_training_tokens")
        self._loss, self._norm = gauge("indexmem_training_loss"), gauge("indexmem_training_grad_norm")
        self._rate = gauge("indexmem_training_learning_rate")
        self._speed = gauge("indexmem_training_tokens_per_second")
        self._wanted, self._steps_wanted = gauge("indexmem_training_steps_wanted"), experiment.distill.schedule.steps

    def __call__(self, history: Sequence[MetricRow]) -> None:
        """history: all rows so far."""
        if not history:
            return
        last, steps = history[-1], _steps(history)
        if steps > self._counted:
            self._tokens.inc((steps - self._counted) * self._step_tokens, self._run)
            self._counted = steps
        self._step.set(steps, self._run)
        self._wanted.set(self._steps_wanted, self._run)
        self._rate.set(last["lr"], self._run)
        self._speed.set(last["tokens_per_second"], self._run)
        for metric, prefix in ((self._loss, "loss"), (self._norm, "grad_norm")):
            for module, value in by_module(last, prefix).items():
                metric.set(value, self._run | {"module": module})


def _steps(history: Sequence[MetricRow]) -> int:
    return int(history[-1]["step"]) + 1 if history else 0


def _workers(config: DistillConfig) -> int | tuple[int, int]:
    """How many workers to ask Ray Train for: a range makes the group elastic."""
    if config.min_workers is None or config.min_workers == config.workers:
        return config.workers
    return config.min_workers, config.workers
