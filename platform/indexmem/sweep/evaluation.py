"""A trial's quick evaluation: the spec's grid in one process, through the same cells and into the same store as all.

Cells that other trials, or a grid, have evaluated or are about to are not evaluated again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.schema import Experiment
from indexmem.evaluate.grid import plan
from indexmem.evaluate.local import evaluate_here
from indexmem.models.backbone import Backbone
from indexmem.results.schema import OK


def evaluated_rows(
    experiment: Experiment, backbone: Backbone, provenance: Mapping[str, Any]
) -> tuple[pa.Table, tuple[str, ...]]:
    """All rows of the spec's grid, and the ids of its cells. Raises RuntimeError when some rows failed."""
    grid = plan(experiment)
    for _ in evaluate_here(experiment, grid, provenance, backbone):
        pass
    rows = grid.store.read(grid.partitions, cell_ids=grid.cell_ids)
    failed = rows.filter(pc.not_equal(rows["status"], OK))
    if failed.num_rows:
        reason = f"{failed['error_class'][0].as_py()}: {failed['error_message'][0].as_py()}"
        raise RuntimeError(f"{failed.num_rows} of {rows.num_rows} rows failed, the first with {reason}")
    return rows, grid.cell_ids
