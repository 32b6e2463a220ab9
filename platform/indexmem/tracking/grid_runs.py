"""A grid in MLflow: one run per spec, with one child run per cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plotly.graph_objects as go
import yaml
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, Run

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash
from indexmem.results.summary import Summary
from indexmem.tracking.mlflow_runs import FINGERPRINT_TAG, FINISHED, NOTE_TAG, PARENT_TAG, Runs
from indexmem.tracking.models import model_links, models_with
from indexmem.tracking.note import grid_note, link_line
from indexmem.tracking.pictures import charts_page, score_chart
from indexmem.tracking.published import JOB_PAGE_TAG, SUBMISSION_TAG, common_tags, published_params, published_spec
from indexmem.tracking.summary import CellSummary, grid_metrics, in_order, score_curves
from indexmem.tracking.tables import CELLS, SCORES, cell_rows, score_rows, table_json, tables_tag

SPEC_TAG, CELL_TAG = "indexmem.spec_id", "indexmem.cell_id"
PICTURE, CHARTS = "figures/scores.png", "figures/charts.html"
GRID_NOTE = """\
One run per spec, with one child run per cell (method, budget, benchmark). The note of a run tells its result.

Useful searches: ``tags.`indexmem.cell_id` IS NULL`` shows the grids alone; `tags.method = 'snapkv'` the cells of a
method; `metrics.`rows/failed` > 0` what went wrong.
"""


@dataclass(frozen=True)
class GridStory:
    """What a grid's run shows besides its numbers."""

    artifacts: Mapping[str, Path] = field(default_factory=dict)  # path inside the run -> file or folder
    verdict: str = ""  # Markdown: who won, by how much
    figures: Mapping[str, go.Figure] = field(default_factory=dict)  # heading -> interactive chart


def spec_id(experiment: Experiment) -> str:
    """What a grid's run is found by."""
    return content_hash(published_spec(experiment))


def open_grid(runs: Runs, experiment: Experiment) -> Run:
    """The spec's run; a new one has the state RUNNING until `publish_grid` is through."""
    return runs.find_or_create(SPEC_TAG, spec_id(experiment), experiment.name)


def publish_grid(
    runs: Runs,
    trainings: Runs | None,
    experiment: Experiment,
    summary: Summary,
    cells: Sequence[CellSummary],
    story: GridStory,
) -> str:
    """Mirror the grid and return its run's URL; cells that have not changed cost nothing.

    `trainings` are the runs whose logged models the cells may have used.
    """
    parent = open_grid(runs, experiment)
    parent_id = parent.info.run_id
    children: dict[str, Run] = {}
    for run in runs.tagged(PARENT_TAG, parent_id):
        children.setdefault(run.data.tags.get(CELL_TAG, ""), run)
    models = models_with(trainings, {weights for cell in cells for weights in cell.weights})
    for cell in reversed(in_order(cells, summary)):  # the UI lists the newest run first
        _publish_cell(runs, experiment, cell, parent_id, children.get(cell.cell_id), models)

    spec = published_spec(experiment)
    metrics = grid_metrics(summary, cells)
    tags = common_tags(experiment, "eval", _commits(cells)) | tables_tag([SCORES, CELLS])
    links = _links(runs, parent_id, story, tags) | model_links(models.values())
    picture = f"get-artifact?path={PICTURE}&run_uuid={parent_id}"
    note = grid_note(summary, cells, verdict=story.verdict, links=links, picture=picture)
    fingerprint = content_hash([metrics, tags, note, sorted(story.figures)])
    if parent.data.tags.get(FINGERPRINT_TAG) != fingerprint:
        texts = {SCORES: table_json(score_rows(summary)), CELLS: table_json(cell_rows(in_order(cells, summary)))}
        if story.figures:
            texts[CHARTS] = charts_page(experiment.name, story.figures)
        runs.attach(parent_id, {}, texts, {PICTURE: score_chart(summary)})
        runs.inputs(parent_id, _datasets(cells), sorted({model.model_id for model in models.values()}))
        _draw_curves(runs, parent, summary)
        runs.log(parent, metrics, published_params(experiment), tags | {NOTE_TAG: note, FINGERPRINT_TAG: fingerprint})
    runs.attach(parent_id, story.artifacts, {"spec.yaml": yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)})
    runs.client.set_terminated(parent_id, FINISHED)
    return runs.url(parent_id)


def _publish_cell(
    runs: Runs,
    experiment: Experiment,
    cell: CellSummary,
    parent_id: str,
    run: Run | None,
    models: Mapping[str, LoggedModel],
) -> None:
    names = ("method", "budget", "ratio", "benchmark", "model")  # no ratio where none was requested
    grouping = {name: str(cell.identity[name]) for name in names if cell.identity[name] is not None}
    tags = common_tags(experiment, "eval", _commits([cell])) | grouping
    params = {k: v for k, v in cell.identity.items() if v is not None} | published_params(experiment)
    found = [models[weights] for weights in cell.weights if weights in models]
    used = sorted({model.model_id for model in found})
    if used:
        tags[NOTE_TAG] = link_line(model_links(found))
    fingerprint = content_hash([cell.metrics, params, cell.git_commit, used])
    if run is not None and run.info.status == FINISHED and run.data.tags.get(FINGERPRINT_TAG) == fingerprint:
        return
    name = f"{cell.identity['method']} {cell.budget} {cell.identity['benchmark']}"
    run = run or runs.create(name, {PARENT_TAG: parent_id, CELL_TAG: cell.cell_id})
    (dataset,) = _datasets([cell])
    runs.inputs(run.info.run_id, [dataset], used)
    if cell.score is not None:
        for model in used:
            runs.log_model_score(run.info.run_id, model, dataset.dataset, cell.score.mean, cell.measured_at)
    runs.log(run, cell.metrics, params, tags | {FINGERPRINT_TAG: fingerprint})
    runs.client.set_terminated(run.info.run_id, FINISHED)


def _draw_curves(runs: Runs, parent: Run, summary: Summary) -> None:
    """Log the points of the score curves that the run lacks, or has with another value."""
    points = score_curves(summary)
    known = {
        (name, point.step): point.value
        for name in sorted({name for name, _, _ in points} & parent.data.metrics.keys())
        for point in runs.client.get_metric_history(parent.info.run_id, name)
    }
    fresh = [(name, step, value) for name, step, value in points if known.get((name, step)) != value]
    if fresh:
        runs.log_points(parent.info.run_id, fresh)


def _links(runs: Runs, parent_id: str, story: GridStory, tags: Mapping[str, str]) -> dict[str, str]:
    """Text -> address within the UI: the reports, charts, the table of cells, the Ray job."""
    links = {f"Report {name}": runs.place(parent_id, name) for name in story.artifacts if name.endswith(".html")}
    if story.figures:
        links["Interactive charts"] = runs.place(parent_id, CHARTS)
    links["Table of cells"] = runs.place(parent_id, CELLS)
    if JOB_PAGE_TAG in tags:
        links[f"Ray job {tags[SUBMISSION_TAG]}"] = tags[JOB_PAGE_TAG]
    return links


def _commits(cells: Sequence[CellSummary]) -> list[str]:
    return [commit for cell in cells for commit in cell.git_commit.split(",")]


def _datasets(cells: Sequence[CellSummary]) -> list[DatasetInput]:
    builds = sorted({(cell.identity["benchmark"], cell.identity["benchmark_build"]) for cell in cells})
    source = json.dumps({"tags": {"generator": "indexmem.benchmarks"}})
    return [
        DatasetInput(Dataset(name, build[:36], "code", source), [InputTag("mlflow.data.context", "eval")])
        for name, build in builds
    ]
