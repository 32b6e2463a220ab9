"""Sweeps in MLflow: one run per sweep in the experiment <prefix>/sweep, with one child run per trial."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import yaml
from mlflow.entities import Run

from indexmem.config.load import with_settings
from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash, flatten
from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Sweep, Trial
from indexmem.tracking.mlflow_runs import PARENT_TAG, Runs
from indexmem.tracking.mlflow_sink import FINGERPRINT_TAG, FINISHED, NOTE_TAG, MlflowSink
from indexmem.tracking.naming import metric_name
from indexmem.tracking.published import common_tags, published_spec

SWEEP_TAG, TRIAL_TAG, STATUS_TAG = "indexmem.sweep_id", "indexmem.trial_id", "indexmem.trial_status"
SHOWN_TRIALS = 10  # in the note on the sweep


class SweepSink(MlflowSink):
    """Where sweeps are mirrored."""

    def publish_sweep(
        self, experiment: Experiment, sweep: Sweep, artifacts: Mapping[str, Path] | None = None, *, last: bool = True
    ) -> str | None:
        """Mirror a sweep and its trials that have ended, as often as wanted; what has not changed is not sent again.

        With `last=False`, as while it runs, the sweep's run stays open, and calls return at once while another process
        publishes the same, and for a few minutes after one that failed. Returns the URL of the sweep's run on a server,
        else its id.
        """
        if not last and time.monotonic() < self._paused_until:
            return None
        with self._mirroring(), self._turn(sweep.id, wait=last):
            runs = Runs.of(self._client(), f"{experiment.tracking.experiment}/sweep", self._artifact_root)
            parent = runs.find_or_create(SWEEP_TAG, sweep.id, sweep.name)
            children = {run.data.tags.get(TRIAL_TAG): run for run in runs.tagged(PARENT_TAG, parent.info.run_id)}
            for trial in sweep.trials:
                if trial.status != RUNNING:
                    _publish_trial(runs, experiment, trial, parent, children.get(trial.id))
            _publish_parent(runs, experiment, sweep, parent, artifacts or {})
            runs.client.update_run(parent.info.run_id, status=FINISHED if last else "RUNNING")
            return runs.url(parent.info.run_id)
        return None


def sweep_note(sweep: Sweep) -> str:
    """Markdown: the best trials, or those of the Pareto front, with their settings and objectives."""
    metrics = [objective.metric for objective in sweep.objectives]
    ranked = sorted(sweep.valued, key=lambda t: sweep.objectives[0].sign * t.metrics[metrics[0]])
    shown = sweep.front if len(metrics) > 1 else ranked[:SHOWN_TRIALS]
    counts = ", ".join(f"{sum(t.status == s for t in sweep.trials)} {s}" for s in (COMPLETE, STOPPED, FAILED))
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
        cells = [str(trial.number), *(f"{trial.metrics[m]:.4g}" for m in metrics), *map(str, trial.params.values())]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    for trial in sweep.winners:
        found = ", ".join(f"{name} {value:.4g}" for name, value in fresh_values(sweep, trial).items())
        lines += ["", f"Trial {trial.number} on fresh samples: {found}."] if found else []
    if sweep.repeated:
        lines += ["", f"Not fresh, whatever the seed: {', '.join(sweep.repeated)}."]
    return "\n".join(lines)


def fresh_values(sweep: Sweep, trial: Trial) -> dict[str, float]:
    """Its objectives on samples that had no say in its choice."""
    return {o.metric: trial.fresh[o.metric] for o in sweep.objectives if o.metric in trial.fresh}


def _publish_trial(runs: Runs, experiment: Experiment, trial: Trial, parent: Run, run: Run | None) -> None:
    fingerprint = content_hash([trial.status, dict(trial.metrics), list(map(dict, trial.curve)), trial.error])
    if run is not None and run.data.tags.get(FINGERPRINT_TAG) == fingerprint:
        return
    tags = {PARENT_TAG: parent.info.run_id, TRIAL_TAG: trial.id}
    run = run or runs.create(f"trial {trial.number}", tags)
    run_id = run.info.run_id
    sent = {(name, point.step) for name in run.data.metrics for point in runs.client.get_metric_history(run_id, name)}
    points = [(metric_name(n), int(row["step"]), v) for row in trial.curve for n, v in row.items() if n != "step"]
    fresh = [(name, step, value) for name, step, value in points if (name, step) not in sent]
    if fresh:
        runs.log_points(run_id, fresh)
    drawn = {name for name, _, _ in points}
    final = {metric_name(name): value for name, value in trial.metrics.items() if metric_name(name) not in drawn}
    spec = published_spec(with_settings(experiment, trial.params, f"trial {trial.number}").selecting)
    shown = common_tags(experiment, "sweep", [trial.git_commit]) | {
        STATUS_TAG: trial.status,
        "indexmem.distill_id": trial.distill_id,
        "error": trial.error,
    }
    given = {name: text for name, text in shown.items() if text}
    runs.log(run, final | {"seconds": trial.seconds}, flatten(spec), given | {FINGERPRINT_TAG: fingerprint})
    runs.client.set_terminated(run_id, "FAILED" if trial.status == FAILED else FINISHED)


def _publish_parent(
    runs: Runs, experiment: Experiment, sweep: Sweep, parent: Run, artifacts: Mapping[str, Path]
) -> None:
    counts = {s: float(sum(t.status == s for t in sweep.trials)) for s in (COMPLETE, STOPPED, FAILED)}
    best = (
        {f"best/{metric_name(o.metric)}": sweep.best.metrics[o.metric] for o in sweep.objectives}
        | {f"fresh/{metric_name(name)}": value for name, value in fresh_values(sweep, sweep.best).items()}
        if sweep.best
        else {}
    )
    commits = [trial.git_commit for trial in sweep.trials]
    tags = common_tags(experiment, "sweep", commits) | {"model": sweep.model, NOTE_TAG: sweep_note(sweep)}
    fingerprint = content_hash([counts, best, tags])
    if parent.data.tags.get(FINGERPRINT_TAG) != fingerprint:
        spec = experiment.model_dump(mode="json", exclude={"run", "tracking", "pretrain"})
        runs.log(parent, counts | best, flatten(spec), tags | {FINGERPRINT_TAG: fingerprint})
        text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
        runs.attach(parent.info.run_id, artifacts, {"spec.yaml": text})
