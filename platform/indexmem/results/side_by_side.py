"""Several summaries side by side: groups of rows by columns, each of which has its budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.schema import MEAN
from indexmem.results.intervals import Interval
from indexmem.results.summary import Standing, Summary

MARKS: Mapping[str, str] = {"winner": "*", "leading": "~"}


@dataclass(frozen=True)
class SideBySide:
    """`summaries[group][column]` is None where nothing is evaluated yet. Standings are within a group and column."""

    title: str
    groups: tuple[str, ...]
    columns: tuple[str, ...]
    budgets: tuple[Budget, ...]
    methods: Mapping[str, Mapping[str, str]]  # group -> name in the table -> label in the grid
    summaries: Mapping[str, Mapping[str, Summary | None]]

    def cells(self, group: str, label: str) -> Iterator[tuple[Interval | None, Standing | None]]:
        """Mean over the benchmarks and standing of a method, column by column, budget by budget."""
        for column in self.columns:
            summary = self.summaries[group][column]
            for budget in self.budgets:
                if summary is None:
                    yield None, None
                elif budget == NOTHING_EVICTED:
                    yield summary.full(MEAN), "reference"
                else:
                    found = summary.cells.get((label, budget, MEAN))
                    yield found, summary.standing(label, budget, MEAN) if found else None

    @property
    def heads(self) -> list[str]:
        return [f"{column} {budget}" for column in self.columns for budget in self.budgets]


def markdown_table(table: SideBySide) -> str:
    """As Markdown, means in %; '*': best by more than noise, '~': within noise of the best, '-': not evaluated."""
    lines = [["Model", "Method", *table.heads]]
    lines.append(["---"] * len(lines[0]))
    for group in table.groups:
        for number, (name, label) in enumerate(table.methods[group].items()):
            lines.append(["" if number else group, name, *(_plain(*cell) for cell in table.cells(group, label))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_lines(table: SideBySide) -> list[Sequence[str | float]]:
    """A line per cell that is evaluated: group, method, column, budget, mean, low, high in [0, 1], standing."""
    places = [(column, budget) for column in table.columns for budget in table.budgets]
    return [
        (group, name, column, str(budget), found.mean, found.low, found.high, standing or "")
        for group in table.groups
        for name, label in table.methods[group].items()
        for (column, budget), (found, standing) in zip(places, table.cells(group, label))
        if found is not None
    ]


def _plain(found: Interval | None, standing: Standing | None) -> str:
    return "-" if found is None else f"{100 * found.mean:.1f}{MARKS.get(standing or '', '')}"
