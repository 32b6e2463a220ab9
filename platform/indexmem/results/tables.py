"""The comparison as plain text for a terminal, and as a frame of numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa

from indexmem.config.budget import Budget, Kind
from indexmem.results.answers import FULL, Answers, answer_measures
from indexmem.results.intervals import Interval
from indexmem.results.summary import MEAN, Summary, summarise

SCORES = ("model", "method", "budget", "ratio", "benchmark", "mean", "low", "high", "n", "standing")
WIDTH = 100
NAME_WIDTH = 28
CELL_WIDTH = 18
HEADERS: Mapping[Kind, str] = MappingProxyType(
    {"ratio": "evicted:", "tokens": "kept per head:", "bytes": "bytes in all:"}
)
NONE_TOLD = Answers()
MARKS = {"winner": "*", "leading": "~", "behind": " ", "alone": " "}


def sample_counts(summary: Summary) -> str:
    """Samples per benchmark behind the means: '20', '18 to 20' where failures made them differ, '50 in 5 groups'."""
    ranked = [c.common.design for (_, benchmark), c in summary.contests.items() if benchmark == MEAN]
    grouped = [design.clusters[mask] for design in ranked for mask in design.masks]
    grouped = grouped or [scores.groups for scores in summary.scores.values()]
    samples, groups = _range([len(each) for each in grouped]), _range([len(set(each.tolist())) for each in grouped])
    return samples if samples == groups else f"{samples} in {groups} groups"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(high) if low == high else f"{low} to {high}"


def comparison_table(rows: pa.Table) -> str:
    """Methods by budget: mean over benchmarks in %, at most 100 columns wide, full cache first.

    Where there are several answers to a sample, pass@k; where they are long, how long.
    """
    return render_text(summarise(rows), answer_measures(rows))


def render_text(summary: Summary, answers: Answers = NONE_TOLD) -> str:
    """`comparison_table` of a summary that is already at hand."""
    many = len(summary.benchmarks)
    over = f"Mean over {many} benchmarks" if many != 1 else f"{summary.benchmarks[0]}:  mean score"
    lines = [f"{over} in %, with 95% intervals; samples per benchmark: {sample_counts(summary)}", ""]
    full = summary.full(MEAN)
    lines.append(f"{'full cache, nothing evicted':<{NAME_WIDTH}}{full or 'not evaluated'!s:>{CELL_WIDTH - 1}}")
    lines += _blocks(summary, lambda method, budget: _cell(summary, method, budget))
    if answers.passed:
        k, passed = max(answers.passed.items())
        lines += ["", f"{f'pass@{k}, full cache':<{NAME_WIDTH}}{passed.get(FULL, '-')!s:>{CELL_WIDTH - 1}}"]
        lines += _blocks(summary, lambda method, budget: f"{passed.get((method, budget), '-')} ")
    if full_tokens := answers.tokens.get(FULL):
        lines += ["", f"tokens of an answer, full cache  {_tokens(full_tokens)}; and how many more when evicted:"]
        lines += _blocks(summary, lambda method, budget: _tokens(answers.over_full.get((method, budget)), "+"), 24)
    lines += ["", "* best by more than noise   ~ within noise of the best (joint paired test, adjusted p >= 0.05)"]
    if summary.failed:
        lines.append(f"{summary.failed} of {summary.total} rows failed and are in no mean.")
    for sentence in summary.caveats:
        lines += textwrap.wrap(sentence, WIDTH)
    return "\n".join(lines)


def _blocks(summary: Summary, cell: Callable[[str, Budget], str], width: int = CELL_WIDTH) -> list[str]:
    """A line a method and a column a budget, as many as fit beside each other; cells end with a mark or a blank."""
    lines, per_block = [], (WIDTH - NAME_WIDTH) // width
    for kind, budgets in summary.by_kind.items():
        for start in range(0, len(budgets), per_block):
            shown = budgets[start : start + per_block]
            head = "".join(f"{_clipped(str(budget), width) + ' ':>{width}}" for budget in shown)
            lines += ["", f"{HEADERS[kind]:<{NAME_WIDTH}}{head}".rstrip()]
            for method in summary.methods:
                cells = "".join(f"{cell(method, budget):>{width}}" for budget in shown)
                lines.append(f"{_clipped(method, NAME_WIDTH):<{NAME_WIDTH}}{cells}".rstrip())
    return lines


def _clipped(text: str, width: int) -> str:
    """`text` with room for a blank within `width`."""
    return text if len(text) < width else text[: width - 2] + "…"


def _cell(summary: Summary, method: str, budget: Budget) -> str:
    interval = summary.cells.get((method, budget, MEAN))
    return "- " if interval is None else f"{interval}{MARKS[summary.standing(method, budget, MEAN)]}"


def _tokens(found: Interval | None, sign: str = "") -> str:
    """'1,204 (900 to 1,500) '; of a difference, with the sign '+', '+204 (-10 to 400) '."""
    return "- " if found is None else f"{found.mean:{sign},.0f} ({found.low:,.0f} to {found.high:,.0f}) "


def score_frame(summaries: Mapping[str, Summary]) -> pd.DataFrame:
    """A line per (model, method, budget, benchmark or 'mean'): mean, low, high in [0, 1], n, standing in its column.

    `ratio` is the budget as a number, missing where it is not a share; `n` counts independent samples, or groups of
    them. A method that lacks too many samples to be ranked has the standing 'unranked' and no numbers.
    """
    return pd.DataFrame(
        [line for model, summary in summaries.items() for line in _score_lines(model, summary)], columns=list(SCORES)
    ).astype({"n": "Int64"})


def _score_lines(model: str, summary: Summary) -> Iterator[tuple[Any, ...]]:
    for (method, budget, benchmark), cell in summary.listed.items():
        place = (model, method, str(budget), budget.ratio, benchmark)
        yield *place, cell.mean, cell.low, cell.high, cell.n, summary.standing(method, budget, benchmark)
    order = {name: number for number, name in enumerate((MEAN, *summary.benchmarks))}
    for budget, benchmark in sorted(summary.contests, key=lambda column: (column[0], order[column[1]])):
        for method in summary.contests[budget, benchmark].lacking:
            yield model, method, str(budget), budget.ratio, benchmark, None, None, None, None, "unranked"
