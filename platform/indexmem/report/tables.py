"""The comparison as plain text for a terminal, and as CSV for everything else."""

from __future__ import annotations

import csv
import io

import pyarrow as pa

from indexmem.report.summary import FULL, MEAN, Summary, summarise
from indexmem.results.stats import Interval

WIDTH = 100
NAME_WIDTH = 28
CELL_WIDTH = 14
MARKS = {"winner": "*", "leading": "~", "behind": " ", "alone": " "}


def percent(interval: Interval) -> str:
    """'71.2 ±5.1': mean and half of the confidence interval, in points of 100."""
    return f"{100 * interval.mean:.1f} ±{100 * interval.half_width:.1f}"


def ratio_label(ratio: float) -> str:
    """0.9 -> '90%', 0.975 -> '97.5%'."""
    return f"{100 * ratio:.4g}%"


def sample_counts(summary: Summary) -> str:
    """Samples per benchmark behind the scores: '20' or, where failures made them differ, '18 to 20'."""
    counts = {summary.cells[key].n for key in summary.scores}
    if not counts:
        return "0"
    return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def comparison_table(rows: pa.Table) -> str:
    """Methods by evicted share: mean over benchmarks in %, at most 100 columns wide, full cache first."""
    return render_text(summarise(rows))


def comparison_csv(rows: pa.Table) -> str:
    """One line per (method, ratio, benchmark or 'mean'): mean, low, high in [0, 1], n, standing in the column."""
    summary = summarise(rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["method", "ratio", "benchmark", "mean", "low", "high", "n", "standing"])
    order = {name: place for place, name in enumerate((FULL, *summary.methods))}
    columns = {name: place for place, name in enumerate((MEAN, *summary.benchmarks))}
    for method, ratio, benchmark in sorted(summary.cells, key=lambda k: (order[k[0]], k[1], columns[k[2]])):
        cell = summary.cells[method, ratio, benchmark]
        contest = summary.contests.get((ratio, benchmark))
        standing = "reference" if method == FULL else contest.standing(method) if contest else ""
        limits = [f"{value:.6f}" for value in (cell.mean, cell.low, cell.high)]
        writer.writerow([method, f"{ratio:g}", benchmark, *limits, cell.n, standing])
    return buffer.getvalue()


def render_text(summary: Summary) -> str:
    """`comparison_table` of a summary that is already at hand."""
    many = len(summary.benchmarks)
    over = f"Mean over {many} benchmarks" if many != 1 else f"{summary.benchmarks[0]}:  mean score"
    lines = [f"{over} in %, ± half of the 95% interval; samples per benchmark: {sample_counts(summary)}", ""]
    full = summary.full(MEAN)
    lines.append(
        f"{'full cache, nothing evicted':<{NAME_WIDTH}}{percent(full) if full else 'not evaluated':>{CELL_WIDTH - 1}}"
    )
    per_block = (WIDTH - NAME_WIDTH) // CELL_WIDTH
    for start in range(0, len(summary.ratios), per_block):
        lines += ["", *_block(summary, summary.ratios[start : start + per_block])]
    lines += ["", "* best by more than noise   ~ within noise of the best (paired test, Holm-adjusted p >= 0.05)"]
    if summary.failed:
        lines.append(f"{summary.failed} of {summary.total} rows failed and are in no mean.")
    return "\n".join(lines)


def _block(summary: Summary, ratios: tuple[float, ...]) -> list[str]:
    header = f"{'evicted:':<{NAME_WIDTH}}" + "".join(f"{ratio_label(ratio):>{CELL_WIDTH - 1}} " for ratio in ratios)
    lines = [header.rstrip()]
    for method in summary.methods:
        name = method if len(method) < NAME_WIDTH else method[: NAME_WIDTH - 2] + "…"
        cells = "".join(_cell(summary, method, ratio) for ratio in ratios)
        lines.append(f"{name:<{NAME_WIDTH}}{cells}".rstrip())
    return lines


def _cell(summary: Summary, method: str, ratio: float) -> str:
    interval = summary.cells.get((method, ratio, MEAN))
    if interval is None:
        return f"{'-':>{CELL_WIDTH - 1}} "
    return f"{percent(interval):>{CELL_WIDTH - 1}}{MARKS[summary.contests[ratio, MEAN].standing(method)]}"
