"""Training in one process, or in the processes of `torchrun`, in calls as long as one likes.

A training has a folder: checkpoints `step-*`, `history`, and once it has ended `final`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from indexmem.distill.history import History
from indexmem.errors import UserError
from indexmem.files import copy_folder
from indexmem.signals import StopSignals
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.loop import compile_layers, new_module, pretrain
from indexmem_testbed.model import STATE

FINAL = "final"
WRITING = "writing-"  # how names of unfinished checkpoints begin


@dataclass(frozen=True)
class RankContext:
    """A TrainContext: one of the processes on this machine, with checkpoints in `folder`.

    It ends early at the deadline (time.monotonic), or when it gets a signal.
    """

    folder: Path
    rank: int = 0
    world: int = 1
    deadline: float = float("inf")
    keep: int = 2
    signals: StopSignals = field(default_factory=StopSignals)

    def wrap(self, module: nn.Module) -> nn.Module:
        return DistributedDataParallel(module) if self.world > 1 else module

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else nullcontext()

    def mean(self, values: Tensor) -> Tensor:
        if self.world > 1:
            distributed.all_reduce(values)
        return values / self.world

    def stop_requested(self) -> bool:
        return self.signals.received is not None or time.monotonic() > self.deadline

    def restore(self) -> Path | None:
        done = sorted(self.folder.glob(f"step-*/{STATE}"))
        return done[-1].parent if done else None

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=WRITING, dir=self.folder))

    def checkpoint(self, folder: Path | None, metrics: dict[str, Any]) -> None:
        if folder is not None:
            folder.rename(self.folder / f"step-{metrics['step']:08d}")
            for old in [*sorted(self.folder.glob("step-*"))[: -self.keep], *self.folder.glob(f"{WRITING}*")]:
                shutil.rmtree(old)
        if self.world > 1:
            distributed.barrier()


def train(config: PretrainConfig, folder: Path, stop_after: float | None = None) -> Path | None:
    """Train in this process, or as a rank of `torchrun`; the model folder, or None when it was stopped before the end.

    A training that `folder` holds goes on from its last checkpoint. `stop_after` minutes from now, or at a SIGINT or
    SIGTERM, this call ends with a checkpoint. Raises UserError when the rows of a step cannot be shared by the ranks.
    """
    deadline = time.monotonic() + 60 * (stop_after or float("inf"))
    folder.mkdir(parents=True, exist_ok=True)
    with StopSignals() as signals, _group() as (rank, world, device):
        check_world(config, world)
        module = new_module(config, device)
        if config.compile and device.type == "cuda":
            compile_layers(module, config, world)
        context = RankContext(folder, rank, world, deadline, config.keep_checkpoints, signals)
        pretrain(config, context, History(folder / "history", span=config.checkpoint_every), module)
        ended = folder / f"step-{config.steps:08d}"
        if not ended.is_dir():
            return None
        if rank == 0:
            copy_folder(ended, folder / FINAL, leave_out=(STATE,))
        return folder / FINAL


def check_world(config: PretrainConfig, world: int) -> None:
    """Raises UserError unless every rank gets as many rows of each step as the others."""
    for stage in config.stages:
        if config.step_tokens // stage.length % world:
            raise UserError(
                f"{config.step_tokens // stage.length} sequences of {stage.length} tokens cannot be shared by {world} "
                f"processes. Set pretrain.step_tokens to a multiple of {stage.length * world}."
            )


@contextmanager
def _group() -> Iterator[tuple[int, int, torch.device]]:
    """Rank, number of ranks and device of this process, as `torchrun` says, else alone."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield rank, world, device
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield rank, world, device
    finally:
        distributed.destroy_process_group()
