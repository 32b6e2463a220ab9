"""Tables of docs/kernels.md from the files of kernel_times.py and distill_step.py.

python tests/bench/kernel_tables.py docs/results/bench/kernel-reread.json docs/results/bench/step-twice.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KERNEL_HEAD = "| kernel | tokens | dtype | ms | floor | times the floor | blocks of torch, ms |"
STEP_HEAD = "| tokens | score rows | frozen forward passes, s | step, s | ratio | peak GiB |"


def kernel_line(row: Mapping[str, Any]) -> str:
    floor = max(row["floors"].values())
    cells = (1e3 * row["seconds"], 1e3 * floor, row["seconds"] / floor, 1e3 * row["torch_seconds"])
    kernel, floors, times, torch = (f"{value:.3g}" for value in cells)
    name = f"| `{row['kernel']}` | {row['tokens'] // 1024}K | {row['dtype']}"
    return f"{name} | {kernel} | {floors} | {times} | {torch} |"


def step_line(row: Mapping[str, Any]) -> str:
    passes = row["forwards"] * row["forward_seconds"]
    rows = "1" if row["scope"] == "layer" else "a row for each KV head"
    figures = f"{passes:.3f} | {row['step_seconds']:.3f} | {row['ratio']:.2f} | {row['step_peak_GiB']:.1f}"
    return f"| {row['tokens'] // 1024}K | {rows} | {figures} |"


def table(measured: Mapping[str, Any]) -> str:
    """Markdown of one file, without the rows that failed, and where it was measured."""
    of_steps = "source" in measured
    head, line = (STEP_HEAD, step_line) if of_steps else (KERNEL_HEAD, kernel_line)
    whole = [row for row in measured["rows"] if ("ratio" if of_steps else "torch_seconds") in row]
    device = measured.get("device") or measured["limits"]["name"]
    where = f"\n{device}, torch {measured['torch']}, commit {measured['commit']}"
    return "\n".join((head, "|---" * (head.count("|") - 1) + "|", *map(line, whole), where))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        print(table(json.loads(path.read_text())), end="\n\n")


if __name__ == "__main__":
    main()
