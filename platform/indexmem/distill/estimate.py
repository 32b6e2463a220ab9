"""What a training will cost in device hours: from steps that were measured, else from a model of cost."""

from __future__ import annotations

import statistics

from indexmem.config.schema import Experiment
from indexmem.distill.history import History, step_tokens
from indexmem.distill.runs import DistillRun, runs_folder
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import read_config
from indexmem.models.backbone import inspect
from indexmem.models.cost import SPEEDS, DeviceKind, attention_flops, pass_flops, time_in_words

RECENT_STEPS = 100  # whose speed is taken
OVERHEAD = 1.3  # of what is trained, and of targets, over the passes of the frozen model; assumed


def training_time(experiment: Experiment, run: DistillRun | None) -> str:
    """Device hours of the steps that are left, and what they are taken from. `run`: where it is, if that is known."""
    config = experiment.distill
    kind: DeviceKind = "GPU" if config.use_gpu else "CPU"
    history = run.read_history() if run else []
    left = config.schedule.steps - (history[-1]["step"] + 1 if history else 0)
    tokens = left * step_tokens(experiment)
    measured = _measured(experiment, run)
    if measured is not None:
        speed, basis = measured
        hours: tuple[float, ...] = (tokens / speed / 3600,)
    else:
        flops = left * config.sequences_per_step * _sequence_flops(experiment)
        hours = tuple(seconds / 3600 for seconds in SPEEDS[kind].seconds(flops, 0.0))
        basis = f"if it gets {SPEEDS[kind].said}; no training of this model is stored to go by"
    wall = "" if config.workers == 1 else f", {time_in_words([h / config.workers for h in hours])} with all workers"
    return f"{time_in_words(hours, kind)}{wall}, {basis}"


def _measured(experiment: Experiment, run: DistillRun | None) -> tuple[float, str] | None:
    """Tokens a second of a single worker, and whose they are: this run's, else the newest one's of the same model that
    read its texts as often, on as many tokens at a time.
    """
    config, folders = experiment.distill, []
    if run is not None and run.history.is_dir():
        folders.append((run.history, config.workers, "as its first steps took"))
    for folder in sorted(runs_folder(experiment).glob("*/final"), key=lambda f: f.stat().st_mtime, reverse=True):
        try:
            trained = read_config(folder)["trained"]
        except UserError:
            continue
        theirs = trained.get("distill", {})
        alike = trained.get("backbone") == experiment.model.id and theirs.get("use_gpu") == config.use_gpu
        alike &= all(theirs.get(name) == getattr(config, name) for name in ("length", "batch_size"))
        if alike and trained.get("target", {}).get("source") == experiment.target.source:
            words = f"as a training of this model took ({folder.parent.name})"
            folders.append((folder.parent / "history", theirs["workers"], words))
    for history, workers, words in folders:
        speeds = [row["tokens_per_second"] for row in History(history).read()[-RECENT_STEPS:]]
        if speeds:
            return statistics.median(speeds) / workers, words
    return None


def _sequence_flops(experiment: Experiment) -> float:
    """Of one sequence in one step: forward passes, the attention that targets are taken from, what is trained."""
    geometry, length = inspect(experiment.model), experiment.distill.length
    again = experiment.target.source == "reconstruction"
    passes = pass_flops(geometry, length) * (2 if again else 1)
    return OVERHEAD * (passes + attention_flops(geometry, length))
