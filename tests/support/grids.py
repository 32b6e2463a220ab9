"""What a planned grid lacks, as tasks that an evaluator takes."""

from __future__ import annotations

from itertools import compress

import numpy as np

from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.work import RETENTION_SAMPLES, Task


def remaining(plan: GridPlan) -> list[Task]:
    """Samples with cells that have no finished row in the store, in order of samples, then benchmarks."""
    missing = plan.missing()
    order = [(int(index), name) for name, m in missing.items() for index in np.flatnonzero(m.any(axis=1))]
    return [
        Task(
            plan.samples[name][index],
            tuple(compress(plan.cells_of[name], missing[name][index])),
            index < RETENTION_SAMPLES,
        )
        for index, name in sorted(order, key=lambda pair: pair[0])
    ]
