"""What a night consists of: a step for each verb of each suite, with a frozen spec that the verb is run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from indexmem.config.load import load, with_overrides
from indexmem.config.nightly import NightlySpec, SuiteConfig, Verb
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.nightly.night import Night


@dataclass(frozen=True)
class NightStep:
    """One verb of one suite."""

    suite: str
    verb: Verb
    experiment: Experiment
    folder: Path  # the suite's run root
    gpus: float  # that it holds at most

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.verb}"

    @property
    def spec(self) -> Path:
        """The frozen spec, as a file."""
        return self.folder / "spec.yaml"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.verb}.log"


def steps_of(spec: NightlySpec, night: Night) -> list[NightStep]:
    """All steps in order. A night that has begun goes on with the specs that it began with.

    Raises UserError when a suite's spec is not valid, or when its GPUs cannot be counted against a budget.
    """
    return [step for suite in spec.suites for step in _steps(spec, suite, night)]


def freeze_specs(night: Night, steps: Sequence[NightStep], write: Callable[[Experiment, Path], None]) -> None:
    """Make the suites' folders and `write` each spec that is not there yet into its folder, as spec.yaml."""
    for step in steps:
        night.make_suite(step.suite)
        if not step.spec.is_file():
            write(step.experiment, step.folder)


def _steps(spec: NightlySpec, suite: SuiteConfig, night: Night) -> list[NightStep]:
    folder = night.suite(suite.name)
    frozen = folder / "spec.yaml"
    if frozen.is_file():
        experiment = load(frozen)
    else:
        # The night publishes its suites itself: MLflow knows specs by their content, and every night's is the same.
        experiment = load(suite.spec, suite.overrides)
        wait = experiment.run.wait_for_nodes or spec.run.wait_for_nodes
        own = [f"run.root={folder}", f"run.wait_for_nodes={wait}", "tracking.enabled=false"]
        experiment = with_overrides(experiment, own)
    counted = spec.budget.gpu_hours is not None
    return [
        NightStep(suite.name, verb, experiment, folder, _gpus(suite, verb, experiment, counted)) for verb in suite.verbs
    ]


def _gpus(suite: SuiteConfig, verb: Verb, experiment: Experiment, counted: bool) -> float:
    grid, workers = experiment.grid, experiment.distill.workers if experiment.distill.use_gpu else 0
    setting, several, each = {
        "distill": ("distill.workers", 1, float(workers)),
        "sweep": ("sweep.max_concurrent", experiment.sweep.max_concurrent, float(workers)),
        "eval": ("grid.actors", grid.actors, grid.gpus_per_actor),
    }[verb]
    if counted and each and several is None:
        raise UserError(
            f"budget.gpu_hours needs to know how many GPUs suite '{suite.name}' takes: add an override such as "
            f"{setting}=4"
        )
    return (several or 0) * each
