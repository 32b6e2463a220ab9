"""The report: one HTML file that needs nothing else, so it can be mailed, archived, or opened from an artifact store.

Text from models and data is escaped by the template or put in place as text by the scripts. On top of that, the page
forbids itself every network request and every script but its own two (content security policy by hash).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from indexmem.config.budget import PHRASES
from indexmem.config.schema import Experiment
from indexmem.files import write_whole
from indexmem.report.content import Content, gather
from indexmem.report.document import asset, charted, figure_data, template_environment
from indexmem.report.files import write_files
from indexmem.report.images import check_drawable
from indexmem.report.pack import packed
from indexmem.report.palette import style
from indexmem.report.panels import all_panels
from indexmem.report.scorecard import scorecard
from indexmem.report.verdict import listing
from indexmem.results.schema import FULL_LABEL
from indexmem.results.summary import MEAN

SCRIPTS = ("core.js", "charts.js", "filters.js", "scores.js", "samples.js", "kept.js", "link.js")
SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "verdict": "Verdict",
        "scores": "Scores",
        "curves": "Curves",
        "needles": "Needles",
        "facets": "Categories",
        "fidelity": "Fidelity",
        "decoding": "Decoding",
        "ablations": "Ablations",
        "costs": "Costs",
        "samples": "Samples",
        "kept": "Kept tokens",
        "distillation": "Distillation",
        "failures": "Failures",
        "provenance": "Provenance",
    }
)


def write_report(
    experiment: Experiment,
    rows: pa.Table,
    retention: pa.Table,
    out: Path,
    history: Sequence[Mapping[str, Any]] = (),
    *,
    command: str = "python jobs/report.py spec.yaml",
    links: Mapping[str, str] = MappingProxyType({}),
    warning: str = "",
    baseline: str | None = None,
    folder: Path | None = None,
    images: bool = False,
    of: str = "",
) -> Path:
    """Write the report of one experiment's rows to `out`, replacing it in one step, and return `out`.

    rows: ROW_SCHEMA, of one model or several; retention: RETENTION_SCHEMA, may be empty; history: the distillation's
    {'step', 'loss', 'lr'}; links: text -> http(s) address, such as that of the run in MLflow; warning: what forbids to
    read the scores as a ranking; baseline: the method that all others are variants of, by default each family's
    plainest; folder: where CSV and LaTeX go and, with `images`, PNG and SVG; of: by what `report.shelf` knows the page.
    Raises UserError when there are no rows, rows of several experiments, no method `baseline`, or no browser.
    """
    if images:
        check_drawable()
    content = gather(experiment, rows, retention, history, baseline)
    page = render(content, command, links, warning, of)
    write_whole(out, page)
    if folder is not None:
        write_files(content, folder, images=images)
    return out


def render(content: Content, command: str, links: Mapping[str, str], warning: str = "", of: str = "") -> str:
    """The page as a string; see `write_report`."""
    present = content.sections
    return (
        template_environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            experiment=content.experiment,
            views=content.views,
            sections={name: title for name, title in SECTIONS.items() if name in present},
            phrases=PHRASES,
            colours={method: style(method).color for view in content.views for method in view.summary.methods},
            method_style=style,
            command=command,
            of=of,
            about=_about(content),
            warning=warning,
            links={text: address for text, address in links.items() if address.startswith(("http://", "https://"))},
            style=Markup(asset("report.css")),
            FULL_LABEL=FULL_LABEL,
            MEAN=MEAN,
            **charted(SCRIPTS, _data(content)),
        )
    )


def _about(content: Content) -> str:
    """What of the grid tells it apart from others of its name, for the index of reports."""
    views, grid = content.views, content.experiment.grid
    methods = dict.fromkeys(method for view in views for method in view.summary.methods)
    budgets = dict.fromkeys(str(budget) for view in views for budget in view.summary.budgets)
    benchmarks = dict.fromkeys(name for view in views for name in view.summary.benchmarks)
    told = [
        ", ".join(view.model for view in views),
        f"{grid.length:,} tokens",
        *map(listing, (methods, budgets, benchmarks)),
    ]
    return " · ".join(filter(None, told))


def _data(content: Content) -> dict[str, str]:
    """Element id -> packed JSON. Each is unpacked on its own, when it is first looked at."""
    found = {}
    for view in content.views:
        found[f"scores-{view.number}"] = packed(scorecard(view.model, view.summary, view.costs))
        for index, group in enumerate(view.samples):
            found[f"samples-{view.number}-{index}"] = packed(group)
        for index, sample in enumerate(view.kept["samples"]):
            found[f"kept-{view.number}-{index}"] = packed(sample)
        for panel in all_panels(view.sections):
            found[f"figure-{view.number}-{panel.id}"] = packed(figure_data(panel.figure))
    return found | {f"figure-all-{panel.id}": packed(figure_data(panel.figure)) for panel in all_panels(content.common)}
