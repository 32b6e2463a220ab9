"""Tables for a paper: booktabs, methods as rows, budgets or benchmarks as columns, and bold for winners only.

A star marks the best by more than noise; a dagger what is within noise of the best. What belongs to the comparison
beside its numbers, such as who is not ranked, is in the caption.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from indexmem.config.budget import Budget
from indexmem.report.content import View
from indexmem.report.text import counted
from indexmem.results.intervals import Interval
from indexmem.results.schema import FULL_LABEL
from indexmem.results.side_by_side import SideBySide
from indexmem.results.summary import MEAN, Standing, Summary

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
CAPTION = (
    "{what} in \\%, with 95\\% intervals. $^\\star$ and bold: best by more than noise (joint paired test, adjusted "
    "$p < 0.05$). $^\\dagger$: within noise of the best."
)


def budgets_table(views: Sequence[View], length: int) -> str:
    """All models below each other, a column per budget, the full cache first: the layout of RULER tables.

    Needs the packages booktabs and multirow.
    """
    budgets = sorted({budget for view in views for budget in view.summary.budgets})
    heads = ["Model", "Method", "full", *(escaped(str(budget)) for budget in budgets)]
    lines: list[str] = []
    for view in views:
        summary = view.summary
        model = rf"\multirow{{{len(summary.methods)}}}{{*}}{{{escaped(view.model)}}}"
        for number, method in enumerate(summary.methods):
            full = _number(summary.full(MEAN)) if number == 0 else ""
            cells = [_cell(summary, method, budget, MEAN) for budget in budgets]
            lines.append(_row(["" if number else model, escaped(method), full, *cells]))
        lines.append(r"\midrule")
    many = max((len(view.summary.benchmarks) for view in views), default=0)
    what = f"Mean score over {counted(many, 'benchmark')} at {length:,} tokens, by budget,"
    several = len(views) > 1
    said = [f"{view.model}: {text}" if several else text for view in views for text in view.summary.caveats]
    return _table(what, "ll" + "r" * (1 + len(budgets)), heads, lines[:-1], said)


def benchmarks_table(view: View, budget: Budget) -> str:
    """One model at one budget, a column per benchmark and their mean. Needs the package booktabs."""
    summary = view.summary
    columns = [*summary.benchmarks, MEAN]
    lines = [_row(["full cache", *(_number(summary.full(name)) for name in columns)])] if summary.full(MEAN) else []
    lines += [_row([escaped(m), *(_cell(summary, m, budget, name) for name in columns)]) for m in summary.methods]
    what = f"Scores of {view.model} by benchmark at {budget.phrase}"
    return _table(what, "l" + "r" * len(columns), ["Method", *map(escaped, columns)], lines, summary.caveats)


def joined_table(table: SideBySide) -> str:
    """Runs side by side as a paper prints them, in groups of rows and of columns. Needs booktabs and multirow."""
    width = len(table.budgets)
    titles = [rf"\multicolumn{{{width}}}{{c}}{{{escaped(column)}}}" for column in table.columns]
    budgets = [escaped(str(budget)) for _ in table.columns for budget in table.budgets]
    lines = [_row(["Model", "Method", *budgets]), r"\midrule"]
    for group in table.groups:
        methods = table.methods[group]
        for number, (name, label) in enumerate(methods.items()):
            model = "" if number else rf"\multirow{{{len(methods)}}}{{*}}{{{escaped(group)}}}"
            cells = [_marked(found, standing) for found, standing in table.cells(group, label)]
            lines.append(_row([model, escaped(name), *cells]))
        lines.append(r"\midrule")
    return _table(f"{table.title}: mean scores", "ll" + "r" * len(budgets), ["", "", *titles], lines[:-1], [])


def escaped(text: str) -> str:
    """`text` as LaTeX shows it."""
    return re.sub(r"[\\~^&%$#_{}]", lambda found: SPECIAL.get(found[0], "\\" + found[0]), text)


def _cell(summary: Summary, method: str, budget: Budget, benchmark: str) -> str:
    cell = summary.cells.get((method, budget, benchmark))
    if cell is None or method == FULL_LABEL:
        return "--"
    return _marked(cell, summary.standing(method, budget, benchmark))


def _marked(cell: Interval | None, standing: Standing | None) -> str:
    if cell is not None and standing == "winner":
        return rf"\textbf{{{100 * cell.mean:.1f}}}$^\star$ {_limits(cell)}"
    return _number(cell) + (r"$^\dagger$" if standing == "leading" else "")


def _number(cell: Interval | None) -> str:
    return "--" if cell is None else f"{100 * cell.mean:.1f} {_limits(cell)}"


def _limits(cell: Interval) -> str:
    return rf"{{\scriptsize({cell.limits.replace(' to ', '--')})}}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _table(what: str, columns: str, heads: Sequence[str], lines: Sequence[str], caveats: Sequence[str]) -> str:
    caption = " ".join([CAPTION.format(what=escaped(what)), *map(escaped, caveats)])
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering\small",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _row(heads),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )
