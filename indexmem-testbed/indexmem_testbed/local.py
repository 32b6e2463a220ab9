"""Pre-training without Ray: one process, or the processes of `torchrun`, within a time limit.

A run has a folder: `plan.json` (how many steps), checkpoints `step-*`, `history`, and once it has ended `final`.
"""

from __future__ import annotations

import json
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
from indexmem.files import copy_folder, write_whole
from indexmem.signals import StopSignals
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.loop import new_module, pretrain
from indexmem_testbed.model import STATE
from indexmem_testbed.speed import prepare

PLAN = "plan.json"
FINAL = "final"
WRITING = "writing-"  # how names of unfinished checkpoints begin
HEADROOM = 0.7  # of the time is planned for: a whole step took 1.35 times what is measured, and validation takes some


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
        self.wait()

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.world > 1:
            distributed.barrier()


def train_locally(config: PretrainConfig, folder: Path, minutes: float | None, stop_after: float | None) -> Path | None:
    """Train in this process, or as a rank of `torchrun`; the model folder, or None when it was stopped before the end.

    With `minutes`, the number of steps is what that time has room for on this machine, as measured at the first start
    and kept in the folder; later calls go on with that number. `stop_after` minutes from now this call ends with a
    checkpoint. Raises UserError when the rows of a step cannot be shared by the ranks.
    """
    deadline = time.monotonic() + 60 * (stop_after or float("inf"))
    folder.mkdir(parents=True, exist_ok=True)
    with StopSignals() as signals, _group() as (rank, world, device):
        context = RankContext(folder, rank, world, deadline, config.keep_checkpoints, signals)
        check_world(config, world)
        module = new_module(config, device)
        seconds = prepare(module, config, world)
        if rank == 0:
            say_speed(seconds, config)
            if not (folder / PLAN).exists():
                steps = config.steps if minutes is None else affordable_steps(config, seconds, 60 * minutes)
                write_whole(folder / PLAN, json.dumps({"steps": steps, "seconds": seconds}))
        context.wait()
        planned = config.model_copy(update={"steps": json.loads((folder / PLAN).read_text())["steps"]})
        pretrain(planned, context, History(folder / "history", span=config.checkpoint_every), module)
        ended = f"step-{planned.steps:08d}"
        if rank == 0 and (folder / ended).is_dir():
            copy_folder(folder / ended, folder / FINAL, leave_out=(STATE,))
        return folder / FINAL if (folder / ended).is_dir() else None


def check_world(config: PretrainConfig, world: int) -> None:
    """Raises UserError unless every rank gets as many rows of each step as the others."""
    for stage in config.stages:
        if config.step_tokens // stage.length % world:
            raise UserError(
                f"{config.step_tokens // stage.length} sequences of {stage.length} tokens cannot be shared by {world} "
                f"processes. Set pretrain.step_tokens to a multiple of {stage.length * world}."
            )


def affordable_steps(config: PretrainConfig, seconds: dict[int, float], limit: float) -> int:
    """Steps for which `limit` seconds are enough, when a step of each length takes so many `seconds`.

    Raises UserError when that is none.
    """
    per_step = sum(stage.share * seconds[stage.length] for stage in config.stages)
    steps = int(HEADROOM * limit / per_step)
    if steps < 1:
        raise UserError(f"A step takes {per_step:.1f} s; give more than {limit:.0f} s.")
    return steps


def say_speed(seconds: dict[int, float], config: PretrainConfig) -> None:
    """Print what was measured."""
    for length, each in seconds.items():
        print(f"length {length}: {1e3 * each:.1f} ms a step, {config.step_tokens / each:,.0f} tokens/s", flush=True)


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
