"""Scores of stored rows with intervals, as JSON and as the tables of a page; and what each of some changes is worth.

    python tests/bench/score_tables.py --rows FOLDER/runs/results --out docs/results/bench/indexer-smollm2.json \\
        --reference 'indexer(checkpoint=modules/default-0,share=model)' --title 'SmolLM2'
    python tests/bench/score_tables.py --show docs/results/bench/indexer-smollm2.json     # its tables again

The mean over benchmarks of each method and budget; `difference` is that of the reference method minus this one on the
samples that all answered, paired and stratified by benchmark, its p-value adjusted jointly within a budget.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.files import write_whole
from indexmem.results.intervals import Interval
from indexmem.results.schema import FULL_LABEL, OK
from indexmem.results.store import RowStore
from indexmem.results.summary import MEAN, NOTHING_EVICTED, Summary, leads, summarise

KEY = ("benchmark", "sample_id")


def percent(interval: Interval) -> list[float]:
    return [round(100 * x, 1) for x in (interval.mean, interval.low, interval.high)]


def table_of(summary: Summary, reference: str) -> dict[str, Any]:
    """method -> budget -> its mean with interval, and how far the reference is ahead of it."""
    found: dict[str, Any] = {}
    for budget in summary.budgets:
        over, contest = (reference, budget), summary.contests.get((budget, MEAN))
        ranked = contest is not None and over in contest.common.columns
        found_leads = leads(contest.common, over, picked=False) if ranked else {}
        compared = {method: lead for (method, _), lead in found_leads.items()}
        for method in summary.methods:
            cell = summary.cells.get((method, budget, MEAN))
            if cell is None:
                continue
            entry: dict[str, Any] = {"mean": percent(cell)}
            if method in compared:
                entry |= {"difference": percent(compared[method]), "p": round(float(compared[method].p_value), 4)}
            found.setdefault(method, {})[str(budget)] = entry
    return found


def costs_of(rows: Any) -> dict[str, Any]:
    """method -> budget -> share of the full cache's bytes held, and milliseconds to score beside those of prefill."""
    found: dict[str, Any] = {}
    columns = ["kv_bytes", "indexer_bytes", "memory_bytes", "full_kv_bytes", "score_seconds", "prefill_seconds"]
    for cell in rows.group_by(["method", "budget"]).aggregate([(name, "mean") for name in columns]).to_pylist():
        held = sum(cell[f"{name}_mean"] for name in columns[:3])
        found.setdefault(cell["method"], {})[cell["budget"]] = {
            "bytes_percent": round(100 * held / cell["full_kv_bytes_mean"], 1),
            "score_ms": round(1000 * cell["score_seconds_mean"], 2),
            "prefill_ms": round(1000 * cell["prefill_seconds_mean"], 2),
        }
    return found


def answered_by_all(rows: pa.Table) -> pa.Table:
    """The rows of samples that every cell answered: of an evaluation that was stopped, or of several joined."""
    samples = list(zip(*(rows[column].to_pylist() for column in KEY)))
    answered = [sample for sample, status in zip(samples, rows["status"].to_pylist()) if status == OK]
    cells = Counter(answered)
    most = max(cells.values())
    return rows.filter(pa.array([cells[sample] == most for sample in samples]))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    folder = Path(arguments.rows)
    partitions = sorted({path.parent.name for path in (folder / "rows").rglob("*.parquet")} or {"."})
    rows = RowStore(folder).read(partitions)
    names = json.loads(arguments.names.read_text()) if arguments.names else {}
    if names:
        rows = rows.filter(pc.is_in(rows["method"], pa.array([*names, FULL_LABEL])))
        called = pa.array([names.get(label, label) for label in rows["method"].to_pylist()])
        rows = rows.set_column(rows.schema.get_field_index("method"), "method", called)
    if arguments.budgets:
        rows = rows.filter(pc.is_in(rows["budget"], pa.array([*arguments.budgets, "0%"])))
    rows = answered_by_all(rows)
    summary = summarise(rows)
    full = summary.cells.get((FULL_LABEL, NOTHING_EVICTED, MEAN))
    return {
        "title": arguments.title,
        "device": sorted(set(rows["device"].drop_null().to_pylist())),
        "commit": [arguments.commit] if arguments.commit else sorted(set(rows["git_commit"].to_pylist())),
        "benchmarks": list(summary.benchmarks),
        "samples": len(set(zip(rows["benchmark"].to_pylist(), rows["sample_id"].to_pylist()))),
        "samples_of": dict(sorted(Counter(b for b, _ in set(zip(*(rows[c].to_pylist() for c in KEY)))).items())),
        "length": sorted(set(rows["length"].to_pylist())),
        "reference": arguments.reference,
        "names": names,
        "budgets": [str(budget) for budget in summary.budgets],
        "full": percent(full) if full is not None else None,
        "methods": table_of(summary, arguments.reference),
        "costs": costs_of(rows),
    }


def show(found: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    budgets = found["budgets"]
    head = f"| {found['title']} | " + " | ".join(budgets) + " |\n|" + "---|" * (len(budgets) + 1)
    scores, leads = [head], [head]
    if found["full"]:
        scores.append("| full cache | {} [{}, {}] |".format(*found["full"]) + " |" * (len(budgets) - 1))
    for method, cells in found["methods"].items():
        means = [cells[b]["mean"] if b in cells else None for b in budgets]
        scores.append(
            f"| {method} | " + " | ".join("" if m is None else "{} [{}, {}]".format(*m) for m in means) + " |"
        )
        if method != found["reference"]:
            entries = [cells.get(b, {}) for b in budgets]
            texts = [
                "{:+.1f} [{:+.1f}, {:+.1f}]{}".format(*e["difference"], "*" if e["p"] < 0.05 else "")
                if "difference" in e
                else ""
                for e in entries
            ]
            leads.append(f"| {method} | " + " | ".join(texts) + " |")
    if not found["reference"]:
        return "\n".join(scores)
    return "\n".join([*scores, "", f"{found['reference']} minus, points (* p < 0.05):", "", *leads])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or these words of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="folder of a row store")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reference", default="")
    parser.add_argument("--budgets", nargs="*", default=[], help="only these")
    parser.add_argument("--title", default="method")
    parser.add_argument("--names", type=Path, help="JSON of labels and what they are called; others are left out")
    parser.add_argument("--commit", default="", help="where the machine that evaluated could not tell it")
    parser.add_argument("--show", type=Path, help="print the tables of this file")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    found = json.loads(arguments.show.read_text()) if arguments.show else measure(arguments)
    if arguments.out:
        write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    print(show(found))


if __name__ == "__main__":
    main()
