"""A grid's scores as a table in the terminal, or the reason why there is no ranking."""

from __future__ import annotations

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.report.tables import comparison_table
from indexmem.results.gate import Gate, gated

NOT_RANKED = 4  # exit code: all is evaluated, and the full cache is below grid.full_cache_floor


def print_scores(experiment: Experiment, rows: pa.Table) -> Gate:
    """Print the comparison; below the spec's floor for the full cache, its scores alone and what to check."""
    gate = gated(rows, experiment.grid.full_cache_floor)
    print(comparison_table(gate.rows))
    if gate.shortfalls:
        print(f"\n{gate.explanation}\n")
    return gate
