"""The Markdown that MLflow shows on a grid's run: who won, by how much, at which cost, and where to read on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from indexmem.config.budget import Budget
from indexmem.results.schema import FULL_LABEL
from indexmem.results.summary import MEAN, Summary
from indexmem.tracking.cells import CellSummary, held_shares

MOST_METHODS = 16  # a note has 8,000 characters; the report has all methods
GAP = "&emsp;"  # MLflow's UI sets tables without room between columns
MARKS = {"winner": "**{}**", "leading": "{} ~", "behind": "{}", "alone": "{}"}


def grid_note(
    summary: Summary,
    cells: Sequence[CellSummary],
    *,
    verdict: str = "",
    links: Mapping[str, str] | None = None,
) -> str:
    """Markdown: verdict, links (text -> address), scores and bytes by method and budget.

    The first line of the verdict comes before all else.
    """
    headline, _, findings = verdict.partition("\n")  # the UI shows the first lines until it is asked for more
    parts = [
        headline,
        link_line(links or {}),
        _failures(summary),
        findings.strip(),
        _scores(summary),
        _held(summary, cells),
    ]
    return "\n\n".join(part for part in parts if part)


def link_line(links: Mapping[str, str]) -> str:
    """Text -> address, as one line of Markdown."""
    return " · ".join(f"[{_plain(text)}]({address})" for text, address in links.items())


def _failures(summary: Summary) -> str:
    failed = f"**{summary.failed} of {summary.total} rows failed** and are in no mean; the report says why."
    return failed if summary.failed else ""


def _scores(summary: Summary) -> str:
    count = len(summary.benchmarks)
    what = f"Mean score in % over {count} benchmarks" if count != 1 else f"Score in % on {summary.benchmarks[0]}"
    full = summary.full(MEAN)
    text = f"{what}, with 95% intervals."
    if full is not None:
        text += f" The full cache, nothing evicted: {full}."
    if not summary.methods:
        return text
    text += " Bold: best by more than noise. ~: within noise of the best."
    cells = {}
    for method in summary.methods:
        for budget in summary.budgets:
            if (interval := summary.cells.get((method, budget, MEAN))) is not None:
                cells[method, budget] = MARKS[summary.standing(method, budget, MEAN)].format(interval)
    return text + "\n\n" + _table(summary, cells)


def _held(summary: Summary, cells: Sequence[CellSummary]) -> str:
    shares = {key: f"{100 * share:.1f}" for key, share in held_shares(cells).items() if key[0] != FULL_LABEL}
    full = [cell.measures["MiB/full_cache"] for cell in cells if "MiB/full_cache" in cell.measures]
    if not shares or not full:
        return ""
    text = (
        f"Held while decoding (K, V, indexer keys, memory), in % of the full cache's {sum(full) / len(full):.1f} MiB:"
    )
    return text + "\n\n" + _table(summary, shares)


def _table(summary: Summary, cells: Mapping[tuple[str, Budget], str]) -> str:
    """Methods down, best first, budgets across."""
    budgets = summary.budgets
    lines = ["| method |" + "".join(f"{GAP}{budget.phrase} |" for budget in budgets)]
    lines.append("| :--- |" + " ---: |" * len(budgets))
    for method in summary.methods[:MOST_METHODS]:
        lines.append(f"| {_plain(method)} |" + "".join(f"{GAP}{cells.get((method, b), '')} |" for b in budgets))
    hidden = len(summary.methods) - MOST_METHODS
    return "\n".join(lines) + (f"\n\n{hidden} more methods are in the report." if hidden > 0 else "")


def _plain(text: str) -> str:
    """A label that neither ends a table's cell nor a link."""
    return text.replace("|", "/").replace("[", "(").replace("]", ")")
