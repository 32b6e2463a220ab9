"""A grid in MLflow: one run per spec, with one child run per cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, Metric, Run

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash
from indexmem.results.summary import Summary
from indexmem.tracking.cells import CellSummary, grid_metrics, in_order, score_curves
from indexmem.tracking.distill_runs import SPEC_TAG, model_links, models_with, name_grid
from indexmem.tracking.mlflow_runs import NOTE_TAG, PARENT_TAG, Point, Runs
from indexmem.tracking.note import grid_note, link_line
from indexmem.tracking.run_tags import common_tags, job_links, published_params, published_spec

CELL_TAG = "indexmem.cell_id"
GRID_NOTE = """\
One run per spec, with one child run per cell (method, budget, benchmark). The note of a run tells its result.

Useful searches: ``tags.`indexmem.cell_id` IS NULL`` shows the grids alone; `tags.method = 'snapkv'` the cells of a
method; `metrics.`rows/failed` > 0` what went wrong.
"""


def spec_id(experiment: Experiment) -> str:
    """What a grid's run is found by."""
    return content_hash(published_spec(experiment))


def open_grid(runs: Runs, experiment: Experiment, began: int | None = None) -> Run:
    """The spec's run; a new one has the state RUNNING until `publish_grid` is through, and its work began then (ms)."""
    return runs.find_or_create(SPEC_TAG, spec_id(experiment), experiment.name, began)


def publish_grid(
    runs: Runs,
    trainings: Runs | None,
    experiment: Experiment,
    summary: Summary,
    cells: Sequence[CellSummary],
    artifacts: Mapping[str, Path],
    verdict: str,
) -> Run:
    """Mirror the grid and return its run; cells that have not changed cost nothing.

    `trainings` are the runs whose logged models the cells may have used; `artifacts` maps paths inside the run to files
    or folders; `verdict` is Markdown that opens the run's note.
    """
    parent = open_grid(runs, experiment, min((cell.began_at for cell in cells if cell.began_at), default=None))
    children: dict[str, Run] = {}
    for run in runs.tagged(PARENT_TAG, parent.info.run_id):
        children.setdefault(run.data.tags.get(CELL_TAG, ""), run)
    models = models_with(trainings, {weights for cell in cells for weights in cell.weights})
    for place, cell in enumerate(reversed(in_order(cells, summary))):  # the UI lists first what began last
        _publish_cell(runs, experiment, cell, parent, place, children.get(cell.cell_id), models)

    metrics = grid_metrics(summary, cells)
    tags = _tags(experiment, cells)
    links = {f"Report {name}": runs.page(parent, name) for name in artifacts if name.endswith(".html")}
    note = grid_note(summary, cells, verdict=verdict, links=links | job_links() | model_links(models.values()))

    def send_inputs_and_curves() -> None:
        runs.inputs(parent, _datasets(cells), sorted({model.model_id for model in models.values()}))
        runs.log_points(parent, _new_points(runs, parent, score_curves(summary)))

    params, shown = published_params(experiment), tags | {NOTE_TAG: note}
    runs.publish(parent, [metrics, tags, note], metrics, params, shown, send_inputs_and_curves)
    spec = yaml.safe_dump(published_spec(experiment), sort_keys=False, allow_unicode=True)
    runs.attach(parent, artifacts, {"spec.yaml": spec})
    runs.end(parent, at=max((cell.measured_at for cell in cells), default=0) or None)
    if trainings is not None:
        name_grid(trainings, models.values(), parent.info.run_id, f"{experiment.name} {runs.page(parent)}")
    return parent


def _publish_cell(
    runs: Runs,
    experiment: Experiment,
    cell: CellSummary,
    parent: Run,
    place: int,
    run: Run | None,
    models: Mapping[str, LoggedModel],
) -> None:
    names = ("method", "budget", "ratio", "benchmark", "model")  # no ratio where none was requested
    grouping = {name: str(cell.identity[name]) for name in names if cell.identity[name] is not None}
    tags = _tags(experiment, [cell]) | grouping
    params = {k: v for k, v in cell.identity.items() if v is not None} | published_params(experiment)
    found = [models[weights] for weights in cell.weights if weights in models]
    used = sorted({model.model_id for model in found})
    if used:
        tags[NOTE_TAG] = link_line(model_links(found))
    name = f"{cell.identity['method']} {cell.budget} {cell.identity['benchmark']}"
    published = run or runs.create(
        name, {PARENT_TAG: parent.info.run_id, CELL_TAG: cell.cell_id}, parent.info.start_time + place
    )

    def send_inputs() -> None:
        (dataset,) = _datasets([cell])
        runs.inputs(published, [dataset], used)
        if cell.score is not None:
            # As a metric of each model on this data set. Points of equal value and time are one point, however often
            # they are sent.
            data = dataset.dataset
            scores = [
                Metric("score", cell.score.mean, cell.measured_at, 0, model, data.name, data.digest) for model in used
            ]
            runs.client.log_batch(published.info.run_id, metrics=scores)

    runs.publish(published, [cell.metrics, params, cell.git_commit, used], cell.metrics, params, tags, send_inputs)
    runs.end(published, at=cell.measured_at or None)


def _new_points(runs: Runs, run: Run, points: Sequence[Point]) -> list[Point]:
    """Those that the run lacks, or has with another value."""
    known = {
        (name, point.step): point.value
        for name in sorted({name for name, _, _ in points} & run.data.metrics.keys())
        for point in runs.client.get_metric_history(run.info.run_id, name)
    }
    return [(name, step, value) for name, step, value in points if known.get((name, step)) != value]


def _tags(experiment: Experiment, cells: Iterable[CellSummary]) -> dict[str, str]:
    """`common_tags`, and the protocol, by which runs must be told apart before their scores are compared."""
    commits = [commit for cell in cells for commit in cell.git_commit.split(",")]
    return common_tags(experiment, "eval", commits) | {"grid.protocol": experiment.grid.protocol}


def _datasets(cells: Sequence[CellSummary]) -> list[DatasetInput]:
    builds = sorted({(cell.identity["benchmark"], cell.identity["benchmark_build"]) for cell in cells})
    source = json.dumps({"tags": {"generator": "indexmem.benchmarks"}})
    return [
        DatasetInput(Dataset(name, build[:36], "code", source), [InputTag("mlflow.data.context", "eval")])
        for name, build in builds
    ]
