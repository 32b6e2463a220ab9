"""Names and values of what a trial measures: losses of its training, and means over the cells of its grid."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.schema import Experiment
from indexmem.config.sweep import Objective
from indexmem.distill.trainees.registry import make_trainees
from indexmem.errors import UserError
from indexmem.eviction.methods.names import FULL_CACHE
from indexmem.models.geometry import Geometry
from indexmem.results.intervals import macro_ci
from indexmem.results.samples import sample_scores
from indexmem.results.schema import answer_seconds, held_bytes
from indexmem.results.sweeps import Spread
from indexmem.results.units import Design
from indexmem.tracking.naming import budget_label, labels

GRID_MEASURES = ("score", "bytes", "ms")
MISSED = "missed"  # what the indexer ranks too low: the same quantity whatever the loss is
# Settings that change what a loss is a measure of: trials that differ in them cannot be compared by it.
REDEFINE_LOSS = ("model", "target", "indexer.scope", "distill.length", "distill.evict_ratios", "distill.query_tokens")
REDEFINE_MISSED = tuple({*REDEFINE_LOSS, "target.source", "target.heads", "target.sinks"} - {"target"})
# Settings of the sections that shape an indexer which shape something else.
UNSEEN_BY_INDEXER = {
    *("indexer.share", "indexer.floor", "indexer.checkpoint", "distill.locret_hidden"),
    *("distill.joint_from", "distill.query_tokens", "distill.evict_ratios"),
}


def training_names(experiment: Experiment, geometry: Geometry) -> list[str]:
    """Metrics of the spec's training: `loss` of the indexer, `loss_memory-indexer`, and so on."""
    names = [trainee.name for trainee in make_trainees(experiment, geometry)]
    suffixes = ["" if name == "indexer" else f"_{name}" for name in names]
    losses = [f"{metric}{suffix}" for suffix in suffixes for metric in ("loss", "loss_worst_layer")]
    return [*losses, MISSED] if "" in suffixes else losses


def grid_names(experiment: Experiment) -> list[str]:
    """`score`, `bytes` and `ms` over all that evicts, and of each method and budget: `score/indexer/r0.75`."""
    grid = experiment.grid
    named = labels(method.label for method in grid.methods)
    cells = [
        f"{named[m.label]}/{budget_label(b)}" for m in grid.methods if m.name != FULL_CACHE for b in grid.requested
    ]
    cells += [f"{named[m.label]}/{budget_label(NOTHING_EVICTED)}" for m in grid.methods if m.name == FULL_CACHE]
    return [*GRID_MEASURES, *(f"{measure}/{cell}" for cell in cells for measure in GRID_MEASURES)] if cells else []


def check_metrics(experiment: Experiment, geometry: Geometry) -> None:
    """Raises UserError where an objective or ASHA's metric does not exist or cannot compare the sweep's trials."""
    training, sweep = training_names(experiment, geometry), experiment.sweep
    wanted = {"sweep.objectives": [objective.metric for objective in sweep.objectives]}
    known = {"sweep.objectives": [*training, *grid_names(experiment)], "sweep.asha.metric": training}
    if sweep.scheduler == "asha":
        wanted["sweep.asha.metric"] = [sweep.asha.metric]
    for setting, metrics in wanted.items():
        for metric in metrics:
            if metric not in known[setting]:
                near = difflib.get_close_matches(metric, known[setting], n=1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                raise UserError(
                    f"{setting}: no metric is called '{metric}'.{hint} Metrics: {', '.join(known[setting])}."
                )
            if metric in training:
                _check_compares(setting, metric, training, list(sweep.axes))


def _check_compares(setting: str, metric: str, training: Sequence[str], axes: Sequence[str]) -> None:
    """Raises UserError where a training metric measures something else in each trial, or the same in all of them."""
    redefine = REDEFINE_MISSED if metric == MISSED else REDEFINE_LOSS
    if unfair := [name for name in axes if name.startswith(redefine)]:
        raise UserError(
            f"{setting}: '{metric}' is not the same quantity in all trials, since {', '.join(unfair)} says what it "
            "measures. Use objectives from the grid, such as score, and scheduler 'none'; where only target.loss "
            f"differs, '{MISSED}' compares trials."
        )
    if axes and not any(_shapes(name, metric) for name in axes):
        other = [name for name in training if any(_shapes(axis, name) for axis in axes)]
        instead = f"Use {' or '.join(other)}, or" if other else "No training metric does: use"
        raise UserError(
            f"{setting}: '{metric}' does not depend on {', '.join(axes)}, so that chance would choose between trials. "
            f"{instead} objectives from the grid, such as score, and scheduler 'none'."
        )


def _shapes(axis: str, metric: str) -> bool:
    """Whether a setting can change a metric of the training."""
    section = axis.split(".")[0]
    if "_memory-" in metric:
        return section != "eviction" or axis == "eviction.sinks"
    return section in ("model", "target", "indexer", "distill") and axis not in UNSEEN_BY_INDEXER


def training_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means of the losses over some steps: one step's value says more about its text than about the settings."""
    names = sorted({name for row in rows for name in row if name.startswith(("loss", MISSED))})
    found = {name: [float(row[name]) for row in rows if name in row] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def grid_spreads(rows: pa.Table, objectives: Sequence[Objective]) -> dict[str, Spread]:
    """How sure those objectives are that are scores, from a trial's finished rows: metric -> Spread."""
    evicts = rows.filter(pc.not_equal(rows["method"], FULL_CACHE))
    methods, budgets = pc.unique(rows["method"]).to_pylist(), pc.unique(rows["budget"]).to_pylist()
    label = labels(methods)
    cells = {
        f"score/{label[m]}/{budget_label(Budget.parse(b))}": pc.and_(
            pc.equal(rows["method"], m), pc.equal(rows["budget"], b)
        )
        for m in methods
        for b in budgets
    }
    found = {name: rows.filter(mask) for name, mask in cells.items()} | {"score": evicts}
    return {o.metric: _spread(found[o.metric]) for o in objectives if o.metric in found}


def _spread(rows: pa.Table) -> Spread:
    """Of the mean over benchmarks, each sample counted with its mean over all cells."""
    scores = sample_scores(rows, ("benchmark",)).sort_by([("benchmark", "ascending"), ("sample_id", "ascending")])
    design = Design(scores["benchmark"].to_numpy(), scores["group"].to_numpy())
    values = scores["score"].to_numpy()
    interval = macro_ci(values, design)
    units = design.contributions(values[:, None])[:, 0]
    return Spread(interval.low, interval.high, tuple(units.tolist()))


def grid_means(rows: pa.Table) -> dict[str, float]:
    """Means over a trial's finished rows (ROW_SCHEMA) under the names of `grid_names`. Every benchmark weighs the same.

    Bytes are all that a context's state holds; milliseconds are prefill, scoring, and the row's share of decoding.
    """
    seconds = pc.add(pc.add(rows["prefill_seconds"], rows["score_seconds"]), answer_seconds(rows))
    measured = rows.append_column("bytes", held_bytes(rows).cast(pa.float64()))
    measured = measured.append_column("ms", pc.multiply(seconds, 1000.0))
    means = [(measure, "mean") for measure in GRID_MEASURES]
    cells = measured.group_by(["method", "budget", "benchmark"]).aggregate(means)
    named = labels(cells["method"].to_pylist())
    totals: dict[str, list[float]] = defaultdict(list)
    for cell in cells.to_pylist():
        method, budget = cell["method"], Budget.parse(cell["budget"])
        for measure in GRID_MEASURES:
            value = cell[f"{measure}_mean"]
            totals[f"{measure}/{named[method]}/{budget_label(budget)}"].append(value)
            if method != FULL_CACHE:
                totals[measure].append(value)
    return {name: sum(values) / len(values) for name, values in totals.items()}
