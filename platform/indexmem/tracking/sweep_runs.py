"""A sweep in MLflow: one run per sweep in the experiment <prefix>/sweep, with one child run per trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from mlflow.entities import Run

from indexmem.config.load import with_settings
from indexmem.config.schema import Experiment
from indexmem.config.spec import flatten
from indexmem.results.sweeps import FAILED, RUNNING, Sweep, Trial, spread_text
from indexmem.tracking.mlflow_runs import FINISHED, NOTE_TAG, PARENT_TAG, Runs
from indexmem.tracking.naming import metric_name
from indexmem.tracking.run_tags import common_tags, published_spec

SWEEP_TAG, TRIAL_TAG, STATUS_TAG = "indexmem.sweep_id", "indexmem.trial_id", "indexmem.trial_status"
SHOWN_TRIALS = 10  # in the note on the sweep


def publish_sweep(runs: Runs, experiment: Experiment, sweep: Sweep, artifacts: Mapping[str, Path]) -> Run:
    """Mirror the trials that have ended, then the sweep; returns the sweep's run, whose status stays as it is."""
    parent = runs.find_or_create(SWEEP_TAG, sweep.id, sweep.name)
    children = {run.data.tags.get(TRIAL_TAG): run for run in runs.tagged(PARENT_TAG, parent.info.run_id)}
    for trial in sweep.trials:
        if trial.status != RUNNING:
            _publish_trial(runs, experiment, trial, parent, children.get(trial.id))

    metrics = {status: float(count) for status, count in sweep.counts.items()}
    if sweep.best is not None:
        metrics |= {f"best/{metric_name(o.metric)}": sweep.best.metrics[o.metric] for o in sweep.objectives}
        metrics |= {f"fresh/{metric_name(name)}": value for name, value in sweep.fresh_values(sweep.best).items()}
    tags = common_tags(experiment, "sweep", [trial.git_commit for trial in sweep.trials])
    tags |= {"model": sweep.model, NOTE_TAG: sweep_note(sweep)}
    spec = experiment.model_dump(mode="json", exclude={"run", "tracking", "pretrain"})
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    runs.publish(
        parent, [metrics, tags], metrics, flatten(spec), tags,
        lambda: runs.attach(parent, artifacts, {"spec.yaml": text}),
    )  # fmt: skip
    return parent


def sweep_note(sweep: Sweep) -> str:
    """Markdown: the best trials, or those of the Pareto front, with their settings and objectives."""
    metrics = [objective.metric for objective in sweep.objectives]
    shown = sweep.front if len(metrics) > 1 else sweep.ranked[:SHOWN_TRIALS]
    counts = ", ".join(f"{count} {status}" for status, count in sweep.counts.items())
    names = ["trial", *metrics, *sweep.axes]
    lines = [
        f"## {sweep.name}",
        f"{len(sweep.trials)} of {sweep.planned} trials: {counts}. "
        + ("Pareto front:" if len(metrics) > 1 else "Best:"),
        "",
        f"| {' | '.join(names)} |",
        "| --- " * len(names) + "|",
    ]
    for trial in shown:
        values = (spread_text(trial.metrics[metric], trial.spread.get(metric)) for metric in metrics)
        cells = [str(trial.number), *values, *map(str, trial.params.values())]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    lines += ["", sweep.tie_text] if sweep.tie_text else []
    for trial in sweep.winners:
        known = sweep.fresh_values(trial)
        found = ", ".join(f"{name} {spread_text(value, trial.fresh_spread.get(name))}" for name, value in known.items())
        lines += ["", f"Trial {trial.number} on fresh samples: {found}."] if found else []
    if sweep.repeated:
        lines += ["", f"Not fresh, whatever the seed: {', '.join(sweep.repeated)}."]
    return "\n".join(lines)


def _publish_trial(runs: Runs, experiment: Experiment, trial: Trial, parent: Run, run: Run | None) -> None:
    tags = {PARENT_TAG: parent.info.run_id, TRIAL_TAG: trial.id}
    published = run or runs.create(f"trial {trial.number}", tags)
    points = [(metric_name(n), int(row["step"]), v) for row in trial.curve for n, v in row.items() if n != "step"]
    drawn = {name for name, _, _ in points}
    final = {metric_name(name): value for name, value in trial.metrics.items() if metric_name(name) not in drawn}
    spec = published_spec(with_settings(experiment, trial.params, f"trial {trial.number}").selecting)
    shown = common_tags(experiment, "sweep", [trial.git_commit])
    shown |= {STATUS_TAG: trial.status, "indexmem.distill_id": trial.distill_id, "error": trial.error}
    runs.publish(
        published,
        [trial.status, dict(trial.metrics), list(map(dict, trial.curve)), trial.error],
        final | {"seconds": trial.seconds},
        flatten(spec),
        {name: text for name, text in shown.items() if text},
        lambda: runs.extend(published, points),
    )
    runs.end(published, "FAILED" if trial.status == FAILED else FINISHED)
