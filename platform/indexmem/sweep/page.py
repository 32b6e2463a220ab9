"""A sweep as a page in the style of the report, which opens offline: the best settings, charts, all trials."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from markupsafe import Markup

from indexmem.files import write_whole
from indexmem.report.document import asset, charted, figure_data, template_environment
from indexmem.report.pack import packed
from indexmem.report.panels import Panel, PanelGroup, all_panels
from indexmem.report.shelf import page_path, write_index
from indexmem.results.sweeps import Sweep, Trial, setting_text
from indexmem.sweep.importance import importances
from indexmem.sweep.picture import (
    MOST_LINES,
    course,
    front,
    importance_chart,
    learning_curves,
    parallel,
    value_words,
)

PAGES = "indexmem.sweep"
SCRIPTS = ("core.js", "charts.js")
IMPORTANCE_NOTE = (
    "The share of the objective's variance between trials that an axis explains alone, adjusted for chance, with a 95% "
    "interval; values of a range are cut into thirds. Filled: more than chance, counting all axes. A search that looks "
    "where it is good tries some values more often than others, and so sees less of what they change."
)


def write_sweep_report(sweep: Sweep, folder: Path) -> Path:
    """Write <name>-sweep.html and <name>-sweep.csv into `folder`, and its index; returns the first. Where another sweep
    has that name, the file's name has the sweep's id, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = page_path(folder, f"{sweep.name}-sweep", sweep.id)
    write_whole(page, sweep_page(sweep))
    buffer = pa.BufferOutputStream()
    pyarrow.csv.write_csv(_flat(sweep.table()), buffer)
    write_whole(page.with_suffix(".csv"), buffer.getvalue())
    write_index(folder)
    return page


def sweep_page(sweep: Sweep) -> str:
    """The page as a string."""
    sections = sweep_panels(sweep)
    ranks = {trial.id: rank for rank, trial in enumerate(sweep.ranked)}
    return (
        template_environment(PAGES)
        .get_template("sweep.html.j2")
        .render(
            sweep=sweep,
            sections=sections,
            trials=sorted(sweep.trials, key=lambda t: (ranks.get(t.id, len(ranks)), t.number)),
            tied={trial.id for trial in sweep.tied},
            winners={trial.id for trial in sweep.winners},
            values=objective_texts,
            setting=setting_text,
            typed=lambda trial: " ".join(f"'{name}={json.dumps(value)}'" for name, value in trial.params.items()),
            style=Markup(asset("report.css") + asset("sweep.css", PAGES)),
            **charted(SCRIPTS, {f"figure-all-{p.id}": packed(figure_data(p.figure)) for p in all_panels(sections)}),
        )
    )


def objective_texts(sweep: Sweep, trial: Trial, *, fresh: bool = False) -> dict[str, str]:
    """What the trial reached of the objectives: {'score': '62.0% (51.0 to 71.2)', 'bytes': '1.2 MiB'}."""
    metrics, spread = (trial.fresh, trial.fresh_spread) if fresh else (trial.metrics, trial.spread)
    found = {}
    for metric in (objective.metric for objective in sweep.objectives if objective.metric in metrics):
        limits = spread.get(metric)
        interval = f" ({100 * limits.low:.1f} to {100 * limits.high:.1f})" if limits is not None else ""
        found[metric] = value_words(metric, metrics[metric]) + interval
    return found


def sweep_panels(sweep: Sweep) -> dict[str, tuple[PanelGroup, ...]]:
    """Section -> its charts; what there is no data for is missing."""
    if not sweep.trials:
        return {}
    several, found = len(sweep.objectives) > 1, importances(sweep)
    more = len(sweep.trials) - MOST_LINES
    note = f"{more} more trials are in the table." if more > 0 else ""
    first = (
        Panel("front", "Pareto front", "The first two objectives of all trials", front(sweep))
        if several
        else (Panel("course", "Each trial, and the best so far", "The objective by trial", course(sweep)))
    )
    groups = {
        "course": PanelGroup((first,)) if sweep.valued else None,
        "settings": PanelGroup(
            (Panel("parallel", "A line a trial, the best in orange, dotted without a result", "Settings and objectives "
                   "of all trials; the same values are in the table", parallel(sweep), wide=True),), note=note
        ),
        "importance": PanelGroup(
            (Panel("importance", "Which axes decide", "Share of variance by axis", importance_chart(found)),),
            note=IMPORTANCE_NOTE,
        ) if found else None,
    }  # fmt: skip
    if (curves := learning_curves(sweep)) is not None:
        caption = "By step: the best trial in orange, trials that were ended early dotted"
        groups["curves"] = PanelGroup((Panel("curves", caption, "A training metric by step", curves),))
    return {name: (group,) for name, group in groups.items() if group is not None}


def _flat(table: pa.Table) -> pa.Table:
    """Lists as text, which CSV does not hold."""
    for index, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [None if value is None else str(value) for value in table[index].to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table
