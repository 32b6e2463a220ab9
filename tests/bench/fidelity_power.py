"""How many samples tell two methods apart: by score, and by fidelity to the full cache. From stored rows.

    python tests/bench/fidelity_power.py --rows FOLDER/results --benchmarks vt --out docs/results/bench/fidelity.json
    python tests/bench/fidelity_power.py --show docs/results/bench/fidelity.json     # its table again

For each pair of neighbours in the order of mean score, n such that a paired two-sided test at 5 % finds the difference
that was measured with a power of 80 %: n = ((1.96 + 0.84) sd / mean)^2 over the samples' differences, of the score, of
top-1 agreement and of KL. A difference that is within noise itself gives a large n that is as uncertain.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indexmem.results.intervals import mean_ci
from indexmem.results.schema import FULL_LABEL, OK
from indexmem.results.store import RowStore

MEASURES = {"score": "score", "top1": "fidelity_top1", "kl": "fidelity_kl"}
QUANTILES = 1.96 + 0.84


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    folder = Path(arguments.rows)
    partitions = sorted({path.parent.name for path in (folder / "rows").rglob("*.parquet")})
    frame = RowStore(folder).read(partitions).to_pandas()
    frame = frame[(frame.status == OK) & ((frame.budget == arguments.budget) | (frame.method == FULL_LABEL))]
    if arguments.benchmarks:
        frame = frame[frame.benchmark.isin(arguments.benchmarks)]
    tables = {
        name: frame.pivot_table(index=["benchmark", "sample_id"], columns="method", values=column).dropna()
        for name, column in MEASURES.items()
    }
    order = tables["score"].drop(columns=FULL_LABEL).mean().sort_values(ascending=False).index.tolist()
    return {
        "budget": arguments.budget,
        "model": sorted(set(frame.model)),
        "length": sorted({int(length) for length in frame.length}),
        "benchmarks": sorted(set(frame.benchmark)),
        "samples": len(tables["score"]),
        "device": sorted(set(frame.device)),
        "commit": [arguments.commit] if arguments.commit else sorted(set(frame.git_commit)),
        "methods": {
            method: {name: _mean(name, table[method].to_numpy()) for name, table in tables.items()}
            for method in [FULL_LABEL, *order]
        },
        "pairs": [
            {"better": better, "worse": worse}
            | {name: _needed(table[better] - table[worse]) for name, table in tables.items()}
            for better, worse in pairwise(order)
        ],
    }


def _mean(measure: str, values: NDArray[np.float64]) -> list[float]:
    """Mean and 95 % interval over samples: of shares as in reports, of KL, which has no largest value, by bootstrap."""
    if measure == "kl":
        draws = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
        limits = (values.mean(), *np.quantile(draws, (0.025, 0.975)))
    else:
        found = mean_ci(values)
        limits = (found.mean, found.low, found.high)
    return [round(float(x), 4) for x in limits]


def _needed(difference: pd.Series) -> int | None:
    mean, spread = float(difference.mean()), float(difference.std(ddof=1))
    return None if mean == 0 else max(2, int(np.ceil((QUANTILES * spread / mean) ** 2)))


def show(found: dict[str, Any]) -> str:
    lines = [
        "| at {budget} | score | same token as the full cache | KL, nats a token |".format(**found),
        "|---|---|---|---|",
    ]
    for method, means in found["methods"].items():
        score, top1, kl = means["score"], means["top1"], means["kl"]
        shares = ["{:.1f} ({:.1f} to {:.1f})".format(*(100 * x for x in each)) for each in (score, top1)]
        lines.append(f"| {method} | {shares[0]} | {shares[1]} | " + "{:.3f} ({:.3f} to {:.3f}) |".format(*kl))
    lines += ["", "| samples that tell apart | by score | by the same token | by KL |", "|---|---|---|---|"]
    for pair in found["pairs"]:
        needed = [f"{pair[name]:,}" if pair[name] else "equal" for name in MEASURES]
        lines.append(f"| {pair['better']}, {pair['worse']} | " + " | ".join(needed) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="folder of a row store")
    parser.add_argument("--budget", default="75%")
    parser.add_argument("--benchmarks", nargs="+", help="only these")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="", help="where the machine that evaluated could not tell it")
    parser.add_argument("--show", type=Path)
    arguments = parser.parse_args()
    found = json.loads(arguments.show.read_text()) if arguments.show else measure(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(show(found))


if __name__ == "__main__":
    main()
