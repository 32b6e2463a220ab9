"""Everything that a report shows, before it has a form: the page and the folder of files are both made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from indexmem.config.budget import Budget
from indexmem.config.schema import Experiment
from indexmem.report.ablations import Ablation, ablations
from indexmem.report.explorer import SHOWN_CHARACTERS, sample_groups
from indexmem.report.facets import Facet, facets, heat_maps
from indexmem.report.origin import Failure, Origin, failures, origin
from indexmem.report.panels import (
    PanelGroup,
    ablation_groups,
    cost_groups,
    curve_groups,
    decode_groups,
    distillation_groups,
    facet_groups,
    fidelity_groups,
    heat_groups,
)
from indexmem.report.verdict import GridVerdict, refusal, verdict
from indexmem.report.viewer import viewer_data
from indexmem.results.answers import Answers, answer_measures
from indexmem.results.costs import UNEQUAL, Cost, costs
from indexmem.results.gate import Floors, Gate, gated
from indexmem.results.samples import Column
from indexmem.results.summary import Summary, by_model, summarise


@dataclass(frozen=True)
class View:
    """One model's part of every section. `number` is its place among the models."""

    number: int
    model: str
    summary: Summary
    verdict: GridVerdict
    costs: tuple[Cost, ...]
    answers: Answers
    ablations: tuple[Ablation, ...]
    facets: tuple[Facet, ...]
    sections: Mapping[str, tuple[PanelGroup, ...]]  # section -> its charts
    samples: list[dict[str, Any]]  # a group per benchmark
    kept: dict[str, Any]

    @property
    def cost_at(self) -> dict[Column, Cost]:
        return {(cost.method, cost.budget): cost for cost in self.costs}

    @property
    def costly(self) -> set[Column]:
        """Who holds more than another method of its column."""
        least: dict[Budget, float] = {}
        for cost in self.costs:
            least[cost.budget] = min(cost.cache_share, least.get(cost.budget, cost.cache_share))
        return {(c.method, c.budget) for c in self.costs if c.cache_share > UNEQUAL * least[c.budget]}


@dataclass(frozen=True)
class Content:
    experiment: Experiment
    views: tuple[View, ...]  # one per model
    common: Mapping[str, tuple[PanelGroup, ...]]  # section -> charts that belong to no model
    failures: tuple[Failure, ...]
    failed: int
    total: int  # rows
    origin: Origin

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
    baseline: str | None = None,
) -> Content:
    """Do all statistics and draw all figures; see `write_report` for the arguments and what it raises."""
    found = views(rows, retention, baseline, experiment.grid.full_cache_floor)
    return Content(
        experiment=experiment,
        views=found,
        common={"distillation": distillation_groups(history)},
        failures=failures(rows),
        failed=sum(view.summary.failed for view in found),
        total=rows.num_rows,
        origin=origin(experiment, rows),
    )


def views(rows: pa.Table, retention: pa.Table, baseline: str | None = None, floor: Floors = None) -> tuple[View, ...]:
    """A view per model; of one whose full cache is below `floor`, the full cache alone.

    Raises UserError when there are no rows, or rows of several experiments with one model.
    """
    if not rows.num_rows:
        summarise(rows)
    models = by_model(rows)
    return tuple(
        _view(number, model, gated(mine, floor), retention, baseline, SHOWN_CHARACTERS // len(models))
        for number, (model, mine) in enumerate(models.items())
    )


def _view(number: int, model: str, gate: Gate, retention: pa.Table, baseline: str | None, characters: int) -> View:
    rows = gate.rows
    summary = summarise(rows)
    spent = costs(rows)
    found = ablations(summary, baseline)
    by_label = facets(rows, summary.ranked)
    kept = viewer_data(rows, retention, summary.methods)
    sections = {
        "curves": curve_groups(summary),
        "needles": heat_groups(heat_maps(rows), summary),
        "facets": facet_groups(by_label, summary),
        "fidelity": fidelity_groups(summary, spent),
        "decoding": decode_groups(summary, spent),
        "ablations": ablation_groups(found),
        "costs": cost_groups(summary, spent),
    }
    shown = {sample["id"] for sample in kept["samples"]}
    benchmarks = sorted(set(rows["benchmark"].to_pylist()))
    return View(
        number=number,
        model=model,
        summary=summary,
        verdict=refusal(gate) if gate.shortfalls else verdict(summary, spent),
        costs=spent,
        answers=answer_measures(rows),
        ablations=found,
        facets=by_label,
        sections=sections,
        samples=sample_groups(rows, benchmarks, shown, characters),
        kept=kept,
    )
