"""Tables and a chart of what `memory_designs.py` measured, and a table of `design_tasks.py`.

    python tests/bench/design_report.py RESULTS.json ... [--chart chart.svg] [--tasks tasks.json]

Prints one Markdown table per file, since each run trained an indexer of its own and only its own rows compare exactly.
In the chart a design that several files hold is drawn once, from the first; a tick beside each of its points is the
same run's eviction that keeps as many more tokens as the memory's state costs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from design_scores import RATIOS, more_tokens
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

UNTRAINED = ", untrained maps"
COLORS = ("#9ec5e8", "#2f7df0", "#123a80")  # of the ratios, from light to dark
BASELINE = "#c2410c"
SIGNIFICANT = 0.05  # adjusted p
OFFSETS = (-0.22, 0.0, 0.22)  # of the ratios' points in a design's line

Row = Mapping[str, Any]
ByRatio = Mapping[float, Row]  # one design's rows


def designs(rows: Iterable[Row]) -> dict[str, dict[float, Row]]:
    """Rows by design and ratio, the design that removes most on average first."""
    found: dict[str, dict[float, Row]] = {}
    for row in rows:
        found.setdefault(row["design"], {})[row["ratio"]] = row
    return dict(sorted(found.items(), key=lambda item: -sum(row["mean_over_layers"] for row in item[1].values())))


def table(rows: Iterable[Row]) -> str:
    """A Markdown table: costs, mean over layers with its interval per ratio, and the worst layer at each."""
    head = ["design", "numbers a layer", "parameters a layer", *(f"r = {ratio}" for ratio in RATIOS), "worst layer"]
    lines = [head, ["---"] * len(head)]
    for name, by_ratio in designs(rows).items():
        first = by_ratio[RATIOS[0]]
        lines.append(
            [
                name,
                f"{first['state_numbers']:,} ({first['equal_tokens']} tokens)",
                f"{first['parameters_per_layer']:,}",
                *(_interval(by_ratio[ratio]) for ratio in RATIOS),
                " / ".join(_share(by_ratio[ratio]["worst_layer"]) for ratio in RATIOS),
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def task_table(rows: Iterable[Row]) -> str:
    """A Markdown table of task scores in %: each design beside its bytes in tokens, and the difference, by budget.

    The design that scores best on average comes first. A star marks a difference that is significant.
    """
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["design"], {})[row["budget"]] = row
    budgets = list(dict.fromkeys(budget for by_budget in found.values() for budget in by_budget))
    head = ["design", *(f"{budget}: score, tokens instead | difference" for budget in budgets)]
    lines = [" | ".join(head), " | ".join(["---"] * (1 + 2 * len(budgets)))]
    for name, by_budget in sorted(found.items(), key=lambda item: -sum(row["score"] for row in item[1].values())):
        cells = [name]
        for row in (by_budget[budget] for budget in budgets):
            star = "\\*" if row["p_adjusted"] < SIGNIFICANT else ""
            cells.append(f"{row['score']:.1f}, {row['baseline_score']:.1f}")
            cells.append(f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]{star}")
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def chart(runs: Sequence[Iterable[Row]], path: Path) -> None:
    """Write the trained designs of all runs, each beside what its bytes buy as tokens."""
    shown: dict[str, tuple[ByRatio, ByRatio]] = {}
    for rows in runs:
        known = designs(rows)
        for name, by_ratio in known.items():
            if by_ratio[RATIOS[0]]["parameters_per_layer"] and not name.endswith(UNTRAINED):
                shown.setdefault(name, (by_ratio, known[more_tokens(by_ratio[RATIOS[0]]["equal_tokens"])]))
    order = list(designs(row for by_ratio, _ in shown.values() for row in by_ratio.values()))
    plt.rcParams |= {"svg.hashsalt": "designs", "font.family": "sans-serif", "font.size": 10}
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.38 * len(order)), layout="constrained")
    for line, name in enumerate(order):
        for color, offset, ratio in zip(COLORS, OFFSETS, RATIOS, strict=True):
            memory, tokens = (by_ratio[ratio] for by_ratio in shown[name])
            axes.plot([memory["low"], memory["high"]], [line + offset] * 2, color=color, linewidth=2, alpha=0.6)
            axes.plot(memory["mean_over_layers"], line + offset, "o", color=color, markersize=5)
            axes.plot(tokens["mean_over_layers"], line + offset, "|", color=BASELINE, markersize=8, markeredgewidth=2)
    _dress(axes, [f"{name}  ({shown[name][0][RATIOS[0]]['equal_tokens']} tokens)" for name in order])
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def _dress(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(0, 0.8)
    axes.set_xlabel("share of the eviction error removed, mean over layers")
    axes.grid(axis="x", color="#e2e2e2")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    points = [
        Line2D([], [], color=color, marker="o", linestyle="", label=f"{ratio:.0%} evicted")
        for color, ratio in zip(COLORS, RATIOS, strict=True)
    ]
    tick = {"marker": "|", "linestyle": "", "markersize": 9, "markeredgewidth": 2}
    points.append(Line2D([], [], color=BASELINE, label="same bytes spent on more tokens", **tick))
    axes.legend(handles=points, loc="lower right", framealpha=1, edgecolor="#e2e2e2")


def _share(value: float) -> str:
    """Three digits after the point, one for a share below -1, which is an error that has grown manifold."""
    return f"{value:.1f}" if value < -1 else f"{value:z.3f}".replace("0.", ".", 1)


def _interval(row: Row) -> str:
    return f"{_share(row['mean_over_layers'])} [{_share(row['low'])}, {_share(row['high'])}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--tasks", type=Path)
    args = parser.parse_args()
    runs = [json.loads(path.read_text())["rows"] for path in args.results]
    for path, rows in zip(args.results, runs, strict=True):
        print(f"{path.stem}\n\n{table(rows)}\n")
    if args.chart is not None:
        chart(runs, args.chart)
    if args.tasks is not None:
        print(task_table(json.loads(args.tasks.read_text())["rows"]))


if __name__ == "__main__":
    main()
