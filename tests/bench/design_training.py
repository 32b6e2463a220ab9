"""Train an indexer and memories of several designs on the same forward passes, within a time limit."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from design_list import DESIGNS

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.distill import loop
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.trainees.base import Trainee
from indexmem.distill.trainees.indexer import IndexerTrainee
from indexmem.distill.trainees.memory import MemoryTrainee, Scene
from indexmem.errors import UserError
from indexmem.eviction.indexer import IndexerStack
from indexmem.models.attention import LayerTap
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

PROBE_STEPS, PROBE_WARMUP = 12, 4
HEADROOM = 0.9  # of the time left is planned for: later steps may be slower than the probe's
CHECKPOINTS = 4


@dataclass(frozen=True)
class DeadlineContext(LocalContext):
    """One process that stops after the first step that ends past the deadline (time.monotonic)."""

    deadline: float = float("inf")

    def stop_requested(self) -> bool:
        return time.monotonic() > self.deadline


class DesignTrainee(MemoryTrainee):
    """A memory trainee that is stored under its design's number."""

    def __init__(
        self, experiment: Experiment, geometry: Geometry, number: int, indexers: IndexerStack, shared: dict[str, Any]
    ) -> None:
        super().__init__(experiment, geometry, "indexer", indexers, device="cpu")  # nothing is loaded
        self.name = f"design-{number}"
        self.shared = shared

    def scene(self, tap: LayerTap, context: int, asked: int, ratio: float) -> Scene | None:
        """All designs remember the same evictions: compute them once a layer."""
        key = (tap.layer, context, asked, ratio, tap.key_BHLd.shape, float(tap.hidden_BLD.flatten()[0]))
        if self.shared.get("key") != key:
            self.shared.update(key=key, scene=super().scene(tap, context, asked, ratio))
        scene: Scene | None = self.shared["scene"]
        return scene


def with_schedule(settings: Mapping[str, Any], steps: int, peak_lr: float, source: str = "bench") -> Experiment:
    """The spec of a run of `steps` steps: a tenth warms up, two fifths decay."""
    warmup, decay = steps // 10, steps * 2 // 5
    schedule = {
        "warmup": warmup,
        "stable": steps - warmup - decay,
        "decay": decay,
        "peak_lr": peak_lr,
        "final_lr": peak_lr / 100,
    }
    distill = {**settings["distill"], "schedule": schedule, "checkpoint_every": max(1, -(-steps // CHECKPOINTS))}
    return validate({**settings, "distill": distill}, source)


def train(
    experiment: Experiment, names: Sequence[str], backbone: Backbone, folder: Path, deadline: float
) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the trained modules, and the rows of the history. Ends early at the deadline (time.monotonic)."""

    def trainees(spec: Experiment, geometry: Geometry, device: str) -> list[Trainee]:
        indexer = IndexerTrainee(spec, geometry)
        raw, shared = spec.model_dump(mode="json"), dict[str, Any]()
        return [indexer] + [
            DesignTrainee(
                validate(raw | {"memory": dict(DESIGNS[name])}, name), geometry, number, indexer.trained, shared
            )
            for number, name in enumerate(names)
        ]

    history = History(folder / "history")
    with mock.patch.object(loop, "make_trainees", trainees):
        distill(experiment, DeadlineContext(folder, deadline=deadline), history, backbone)
    rows, last = history.read(), max(folder.glob("step-*"))
    if len(rows) < experiment.distill.schedule.steps:
        print("time is up: what was trained so far is evaluated", flush=True)
    return last, rows


def seconds_per_step(settings: Mapping[str, Any], names: Sequence[str], backbone: Backbone) -> float:
    """Median over a short run that is thrown away, its first steps not counted."""
    probe = with_schedule(settings, PROBE_STEPS, 1e-4, "probe")
    with tempfile.TemporaryDirectory() as folder:
        _, rows = train(probe, names, backbone, Path(folder), float("inf"))
    tokens = probe.distill.batch_size * probe.distill.length
    return statistics.median(tokens / row["tokens_per_second"] for row in rows[PROBE_WARMUP:])


def affordable_steps(wanted: int, per_step: float, seconds_left: float) -> int:
    """As many steps as wanted, or as the time left has room for. UserError when that is none."""
    steps = min(wanted, int(HEADROOM * seconds_left / per_step))
    if steps < 1:
        raise UserError(f"A step takes {per_step:.1f} s and {seconds_left:.0f} s are left; give more --minutes.")
    return steps
