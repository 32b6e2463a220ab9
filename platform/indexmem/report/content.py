"""Everything that a report shows, before it has a form: the page and the folder of files are both made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.report.figures.search import importance_bars, parallel_coordinates
from indexmem.report.figures.training import loss_curve
from indexmem.report.panels import Group, Panel
from indexmem.report.provenance import Failure, Provenance, failures, provenance
from indexmem.report.sweeps import finished, importances
from indexmem.report.view import View, views
from indexmem.results.sweeps import Sweep

IMPORTANCE = "How much worse a random forest fits the trials when one setting is shuffled; whiskers: its spread."


@dataclass(frozen=True)
class Content:
    experiment: Experiment
    views: tuple[View, ...]  # one per model
    common: Mapping[str, tuple[Group, ...]]  # section -> charts that belong to no model
    failures: tuple[Failure, ...]
    failed: int
    total: int  # rows
    provenance: Provenance

    @property
    def sections(self) -> set[str]:
        """Sections with something in them."""
        found = {"verdict", "scores", "samples", "provenance"}
        found |= {name for view in self.views for name, groups in view.sections.items() if groups}
        found |= {name for name, groups in self.common.items() if groups}
        found |= {"kept"} if any(view.kept["samples"] for view in self.views) else set()
        return found | ({"failures"} if self.failures else set())


def gather(
    experiment: Experiment,
    rows: pa.Table,
    retention: pa.Table,
    history: Sequence[Mapping[str, Any]] = (),
    sweeps: Sequence[Sweep] = (),
    baseline: str | None = None,
) -> Content:
    """Do all statistics and draw all figures; see `write_report` for the arguments and what it raises."""
    found = views(rows, retention, baseline, experiment.grid.full_cache_floor)
    return Content(
        experiment=experiment,
        views=found,
        common={"sweep": _sweeps(sweeps), "distillation": _distillation(history)},
        failures=failures(rows),
        failed=sum(view.summary.failed for view in found),
        total=rows.num_rows,
        provenance=provenance(experiment, rows),
    )


def _distillation(history: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    if not history:
        return ()
    caption = "Loss (blue) and learning rate (dotted) by step"
    return (Group((Panel("loss", caption, "Distillation loss and learning rate by step", loss_curve(history)),)),)


def _sweeps(sweeps: Sequence[Sweep]) -> tuple[Group, ...]:
    groups = []
    for number, sweep in enumerate(sweeps):
        if not finished(sweep):
            continue
        best, objective = finished(sweep)[-1], sweep.objectives[0]
        caption = f"{len(finished(sweep))} trials; the best has {objective.metric} {best.metrics[objective.metric]:.4g}"
        if (fresh := best.fresh.get(objective.metric)) is not None:
            caption += f" on the samples that chose it and {fresh:.4g} on fresh ones"
        if sweep.repeated:
            caption += f" (not fresh: {', '.join(sweep.repeated)})"
        label = f"Sweep {sweep.name}, {caption}: " + ", ".join(f"{k} {v}" for k, v in best.params.items())
        trials = Panel(f"sweep-{number}", caption, label, parallel_coordinates(sweep), tall=True, wide=True)
        groups.append(Group((trials,), sweep.name))
        weights = importances(sweep)
        if weights:
            said = ", ".join(f"{weight.axis} {weight.mean:.2f}" for weight in weights)
            caption = "Which settings matter"
            bars = Panel(f"importance-{number}", caption, f"{caption}: {said}", importance_bars(weights))
            groups.append(Group((bars,), note=IMPORTANCE))
    return tuple(groups)
