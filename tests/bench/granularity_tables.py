"""Tables of docs/results/granularity.md from the files of granularity.py.

    python tests/bench/granularity_tables.py docs/results/bench/granularity-testbed.json

Scores are means over benchmarks in %, with their 95% interval. Then: minus single tokens of each head,
on the same samples, with the limits of the paired 95% interval. Blocks are those of a paged cache that still hold a
token, in % of all, where a page is of one head, of a layer's heads, or of the whole model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from indexmem.results.comparison import paired_difference
from indexmem.results.intervals import macro_ci
from indexmem.results.units import Design

SCOPES = ("head", "layer", "model")
FINEST = "head/1"
Cell = Mapping[str, Any]


def flat(cell: Cell) -> tuple[list[float], list[str]]:
    """All scores of a cell, and the benchmark of each."""
    pairs = [(score, name) for name, scores in cell["scores"].items() for score in scores]
    return [score for score, _ in pairs], [name for _, name in pairs]


def score_of(cell: Cell) -> str:
    scores, strata = flat(cell)
    return str(macro_ci(scores, Design.of(len(scores), strata)))


def compared(cell: Cell, finest: Cell) -> str:
    """Its score, and how far it is from that of single tokens of each head."""
    if cell is finest:
        return score_of(cell)
    (scores, strata), (others, same) = flat(cell), flat(finest)
    assert strata == same, "the same samples"
    lead = paired_difference(scores, others, strata=np.array(strata))
    limits = f"{100 * lead.mean:+.1f}: {100 * lead.low:+.1f} to {100 * lead.high:+.1f}"
    return f"{score_of(cell)} ({limits})"


def held(cell: Cell) -> str:
    return " / ".join(f"{100 * cell[scope]:.0f}" for scope in SCOPES)


def lines(measured: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Cell], list[Cell]]]:
    """(method, what holds a set, its cells by ratio, those of single tokens of each head)."""
    said, cells = measured["arguments"], measured["cells"]
    for method in said["methods"]:
        for granularity in said["granularities"]:
            for block in said["blocks"]:
                mine, finest = (
                    [cells[f"{method}@{setting}@{100 * ratio:g}%"] for ratio in said["ratios"]]
                    for setting in (f"{granularity}/{block}", FINEST)
                )
                yield method, f"{granularity}, {block}", mine, finest


def tables(measured: Mapping[str, Any]) -> str:
    """Markdown: scores, blocks, and where it was measured."""
    ratios = [f"{100 * ratio:g}%" for ratio in measured["arguments"]["ratios"]]
    head = "\n".join((f"| method | set, block | {' | '.join(ratios)} |", "|---" * (2 + len(ratios)) + "|"))
    scores, blocks = [head], [head]
    for method, what, cells, finest in lines(measured):
        found = [compared(cell, other) for cell, other in zip(cells, finest)]
        scores.append(f"| `{method}` | {what} | {' | '.join(found)} |")
        blocks.append(f"| `{method}` | {what} | {' | '.join(map(held, cells))} |")
    (full,) = (cell for name, cell in measured["cells"].items() if name.startswith("full@"))
    samples = ", ".join(f"{name} {len(scores_S)}" for name, scores_S in full["scores"].items())
    where = (
        f"Full cache {score_of(full)}. {measured['device']}, commit {measured['commit'][:7]}, {measured['rows']:,} "
        f"rows; {measured['samples_left_out']} samples left out; samples: {samples}."
    )
    page = measured["arguments"]["page"]
    caption = f"Blocks of {page} held, %: pages of a head / a layer / the model"
    return "\n\n".join(("\n".join(scores), caption, "\n".join(blocks), where))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        print(tables(json.loads(path.read_text())), end="\n\n")


if __name__ == "__main__":
    main()
