"""A sweep laid out and checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from indexmem.config.reference import without_folders
from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash, flatten, run_root
from indexmem.config.sweep import DEFAULT_TRIALS
from indexmem.errors import UserError
from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.grid import plan as plan_grid
from indexmem.eviction.methods.names import FULL_CACHE
from indexmem.models.backbone import inspect
from indexmem.plugins.named import code_named, names_of_grid, names_of_training
from indexmem.results.sweeps import Sweep, SweepFolder
from indexmem.sweep.metrics import check_metrics
from indexmem.sweep.space import Space
from indexmem.sweep.trial import evaluates, trains

# What is no part of a sweep's name: sections that no trial depends on, and settings that may change while it goes on.
OUTSIDE_TRIALS = {"run": True, "tracking": True, "pretrain": True}
CHANGEABLE = {"trials", "max_concurrent", "max_failures"}  # how far and how fast, not which trials come


@dataclass(frozen=True)
class Resources:
    """What a trial, or each of its workers, takes."""

    cpus: int
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


@dataclass(frozen=True)
class SweepPlan:
    """Everything that a sweep will do, as far as it is known before it starts."""

    space: Space
    sweep: Sweep  # without its trials
    folder: SweepFolder
    workers: int  # processes that a trial trains on; with more than one it runs on none of its own
    resources: Resources

    @property
    def nested(self) -> bool:
        """Whether a trial only directs workers that Ray Train places."""
        return self.workers > 1

    def concurrency(self, room: int) -> int:
        """Trials that run at once where there is `room` for so many of their processes; 0 when none fits.

        Trials that each wait for some of their workers would wait for ever, so no more run than fit whole.
        """
        fitting = room // self.workers
        return min(fitting, self.sweep.planned, self.space.experiment.sweep.max_concurrent or fitting)


def plan_sweep(experiment: Experiment) -> SweepPlan:
    """Check the spec's sweep and lay it out.

    Raises UserError for an axis, value, objective or method that does not exist or does not fit, and for all that
    `evaluate.grid.plan` refuses.
    """
    space = Space.of(experiment)
    check_metrics(experiment, inspect(experiment.model))
    if trains(experiment) and evaluates(experiment) and experiment.indexer.checkpoint:
        raise UserError("indexer.checkpoint names weights that the grid would use instead of those that trials train.")
    repeated: tuple[str, ...] = ()
    if evaluates(experiment):
        repeated = _repeated(
            plan_grid(experiment.selecting, require_checkpoint=False), plan_grid(experiment, require_checkpoint=False)
        )
        if all(method.name == FULL_CACHE for method in experiment.grid.methods):
            raise UserError("grid.methods evicts nothing, so no setting makes a difference. Add a method.")
    settings = experiment.sweep
    wanted = settings.trials or (space.points if settings.search == "grid" else None) or DEFAULT_TRIALS
    planned = min(wanted, space.points or wanted)
    settings_of = flatten(experiment.model_dump(mode="json", exclude=OUTSIDE_TRIALS | {"sweep": CHANGEABLE}))
    defaults = flatten(Experiment())
    # Without what is at its default: a setting that comes later renames no sweep.
    identity = {key: without_folders(v) for key, v in settings_of.items() if defaults.get(key, ...) != v}
    code = code_named(chain(names_of_grid(experiment), names_of_training(experiment)))
    name = content_hash(identity | ({"code": code} if code else {}))
    axes = {axis: setting.dump() for axis, setting in space.axes.items()}
    workers = experiment.distill.workers if trains(experiment) else 1
    return SweepPlan(
        space,
        Sweep(
            name,
            experiment.name,
            experiment.model.id,
            axes,
            settings.objectives,
            planned,
            evaluates=evaluates(experiment),
            repeated=repeated,
        ),
        SweepFolder(run_root(experiment) / "sweeps" / name),
        workers,
        _resources(experiment, workers),
    )


def _repeated(selecting: GridPlan, reporting: GridPlan) -> tuple[str, ...]:
    """Benchmarks of which the winner's report has texts that trials were compared by: a file is one under any seed."""
    if selecting.outline:
        return ()
    seen = {sample.own_group for samples in selecting.samples.values() for sample in samples}
    found = reporting.samples.items()
    return tuple(name for name, samples in found if any(sample.own_group in seen for sample in samples))


def _resources(experiment: Experiment, workers: int) -> Resources:
    """A trial in one process trains and evaluates in it; the workers of others train only."""
    training = Resources(1, 1.0 if experiment.distill.use_gpu and trains(experiment) else 0.0)
    if workers > 1 or not evaluates(experiment):
        return training
    grid = experiment.grid
    return Resources(max(training.cpus, grid.cpus_per_actor), max(training.gpus, grid.gpus_per_actor))
