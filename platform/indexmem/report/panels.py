"""Which charts a report has, in which section, under which words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import plotly.graph_objects as go

from indexmem.config.budget import PHRASES, Kind
from indexmem.report.ablations import Ablation
from indexmem.report.facets import Facet, HeatMap
from indexmem.report.figures.by_budget import (
    agreement,
    bytes_by_budget,
    distance,
    kept_while_decoding,
    time_by_budget,
    truncation,
)
from indexmem.report.figures.curves import AXES, benchmark_title, score_curve
from indexmem.report.figures.differences import forest
from indexmem.report.figures.labels import facet_chart, heat_map
from indexmem.report.figures.tradeoffs import score_by_bytes, score_by_time
from indexmem.report.figures.training import loss_curve
from indexmem.results.costs import Cost
from indexmem.results.summary import MEAN, Summary

NUMBERS = "the same numbers are in the table"


@dataclass(frozen=True)
class Panel:
    """One chart. `id` is unique within a model; `label` describes it to those who cannot see it."""

    id: str
    caption: str
    label: str
    figure: go.Figure
    benchmark: str = ""  # the benchmark that it is about, if it is about one
    level: str = ""  # the full cache's, in words
    tall: bool = False
    wide: bool = False  # on a narrow screen it scrolls sideways rather than shrinks


@dataclass(frozen=True)
class PanelGroup:
    """Panels side by side under a title, or, with `choices`, one at a time."""

    panels: tuple[Panel, ...]
    title: str = ""
    note: str = ""
    choices: tuple[str, ...] = field(default=())  # what each panel is for, such as its budget


def curve_groups(summary: Summary) -> tuple[PanelGroup, ...]:
    """For each kind of budget the mean, then every benchmark."""
    groups: list[PanelGroup] = []
    kinds: Sequence[Kind] = tuple(summary.by_kind) or ("ratio",)
    for kind in kinds:
        title = f"By {AXES[kind]}" if len(kinds) > 1 else ""
        groups.append(PanelGroup((_curve(summary, MEAN, kind, f"{kind}-mean"),), title))
        names = enumerate(summary.benchmarks)
        each = tuple(_curve(summary, name, kind, f"{kind}-benchmark-{number}") for number, name in names)
        groups.append(PanelGroup(each if len(each) > 1 else ()))
    return tuple(group for group in groups if group.panels)


def heat_groups(maps: Iterable[HeatMap], summary: Summary) -> tuple[PanelGroup, ...]:
    """For each benchmark one map at a time, by budget."""
    groups = []
    for number, (benchmark, found) in enumerate(groupby(maps, key=lambda m: m.benchmark)):
        compared = [m for m in found if any(method in m.scores for method in summary.methods)]
        panels = tuple(
            Panel(
                f"heat-{number}-{index}",
                f"{benchmark}, {m.budget.phrase}",
                f"Heat maps of {benchmark} at {m.budget.phrase}: mean score by context length and needle depth",
                heat_map(m, summary.methods),
                benchmark,
                wide=True,
            )
            for index, m in enumerate(compared)
        )
        groups.append(PanelGroup(panels, choices=tuple(m.budget.phrase for m in compared)))
    return tuple(group for group in groups if group.panels)


def facet_groups(facets: Iterable[Facet], summary: Summary) -> tuple[PanelGroup, ...]:
    """For each label one chart at a time, by budget."""
    groups = []
    for facet in facets:
        panels = tuple(
            Panel(
                f"facet-{facet.name}-{number}",
                f"{facet.title}, {budget.phrase}",
                f"{facet.title} at {budget.phrase}, one marker per method",
                facet_chart(facet, budget, summary.methods),
                tall=True,
            )
            for number, budget in enumerate(summary.budgets)
        )
        note = f"Mean over the benchmarks that have samples of a {facet.name}; whiskers are 95% intervals."
        groups.append(PanelGroup(panels, note=note, choices=tuple(budget.phrase for budget in summary.budgets)))
    return tuple(groups)


def ablation_groups(found: Iterable[Ablation]) -> tuple[PanelGroup, ...]:
    """A forest per baseline."""
    panels = []
    for number, (baseline, ablations) in enumerate(groupby(found, key=lambda ablation: ablation.baseline)):
        caption = f"Variants against {baseline}"
        label = f"{caption}: paired difference of mean scores with 95% interval; {NUMBERS} below"
        panels.append(Panel(f"ablation-{number}", caption, label, forest(tuple(ablations))))
    return (PanelGroup(tuple(panels)),) if panels else ()


def cost_groups(summary: Summary, costs: Sequence[Cost]) -> tuple[PanelGroup, ...]:
    """What scores cost in bytes and time, then both by budget."""
    about = f"{NUMBERS}s Scores and Costs"
    level, methods = _level(summary, MEAN), summary.methods
    trades = (
        Panel("bytes", "Score for cache bytes", f"Mean score by cache bytes; {about}", score_by_bytes(summary, costs),
              level=level),
        Panel("time", "Score for time", f"Mean score by time; {about}", score_by_time(summary, costs), level=level),
    )  # fmt: skip
    groups = [
        PanelGroup(trades, note="Circles and the dotted step: trades that no other cell beats in both score and cost.")
    ]
    for kind in summary.by_kind:
        about = f"by {AXES[kind]}; {NUMBERS} Costs"
        panels = [Panel(f"{kind}-bytes", "Cache bytes", f"Cache bytes {about}", bytes_by_budget(costs, methods, kind))]
        if any(cost.decode_seconds is not None for cost in costs if cost.budget.kind == kind):
            chart = time_by_budget(costs, methods, kind)
            panels.append(Panel(f"{kind}-time", "Decode time", f"Decode time of an answer alone, {about}", chart))
        groups.append(PanelGroup(tuple(panels)))
    return tuple(groups)


def decode_groups(summary: Summary, costs: Sequence[Cost]) -> tuple[PanelGroup, ...]:
    """What decoding under a budget did; nothing where no row measured it."""
    if not any(cost.decode_kept_mean is not None for cost in costs):
        return ()
    groups = []
    for kind in summary.by_kind:
        about = f"by {AXES[kind]}; {NUMBERS} below"
        methods = tuple(m for m in summary.methods if any(c.method == m and c.decode_kept_mean for c in costs))
        score = _curve(summary, MEAN, kind, f"decode-{kind}-score")
        panels = (
            replace(score, tall=False),
            Panel(f"decode-{kind}-cut", "Answers cut at their limit", f"Cut answers {about}",
                  truncation(costs, methods, kind)),
            Panel(f"decode-{kind}-kept", "Tokens held while decoding", f"Tokens held {about}",
                  kept_while_decoding(costs, methods, kind)),
        )  # fmt: skip
        groups.append(PanelGroup(panels, note="Whiskers of the tokens held reach to the most that any head held."))
    return tuple(groups)


def fidelity_groups(summary: Summary, costs: Sequence[Cost]) -> tuple[PanelGroup, ...]:
    """How far each cell is from the full cache; nothing where no row measured it."""
    if not any(cost.fidelity_kl is not None for cost in costs):
        return ()
    groups = []
    for kind in summary.by_kind:
        about = f"by {AXES[kind]}; {NUMBERS} Costs"
        panels = (
            Panel(f"fidelity-{kind}-top1", "Tokens as the full cache's", f"Same likeliest token {about}",
                  agreement(costs, summary.methods, kind)),
            Panel(f"fidelity-{kind}-kl", "Distance from the full cache", f"KL in nats a token {about}",
                  distance(costs, summary.methods, kind)),
        )  # fmt: skip
        groups.append(PanelGroup(panels))
    return tuple(groups)


def distillation_groups(history: Sequence[Mapping[str, Any]]) -> tuple[PanelGroup, ...]:
    """The training's curve, if the spec trains."""
    if not history:
        return ()
    caption = "Loss (blue) and learning rate (dotted) by step"
    return (PanelGroup((Panel("loss", caption, "Distillation loss and learning rate by step", loss_curve(history)),)),)


def all_panels(sections: Mapping[str, Sequence[PanelGroup]]) -> list[Panel]:
    """Every panel, in the order of the page."""
    return [panel for groups in sections.values() for group in groups for panel in group.panels]


def _curve(summary: Summary, benchmark: str, kind: Kind, name: str) -> Panel:
    mean = benchmark == MEAN
    title = benchmark_title(summary, benchmark)
    label = f"{title}: score by {AXES[kind]} ({PHRASES[kind]}), a line per method; {NUMBERS} Scores"
    return Panel(
        name,
        title,
        label,
        score_curve(summary, benchmark, kind),
        benchmark="" if mean else benchmark,
        level=_level(summary, benchmark),
        tall=mean,
    )


def _level(summary: Summary, benchmark: str) -> str:
    full = summary.full(benchmark)
    return f"full cache {100 * full.mean:.1f}%" if full else ""
