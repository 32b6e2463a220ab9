"""What Ray exports to Prometheus about this package's runs: every metric, with its kind, labels and meaning.

Ray adds `ray_` in front, `_total` behind counters, and labels for node, session and worker. All are set in the driver,
which outlives its workers: Ray collects every ten seconds, and what a process counted since is lost when it ends. A
gauge that is not set for some collections is gone, so all are set again and again; those of an ended run go by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from indexmem.extras import missing

try:
    from ray.util.metrics import Counter, Gauge, Histogram
except ImportError:
    raise missing("ray", "ray") from None

UNIT_SECONDS = [0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "indexmem_grid_rows": ("rows stored, by benchmark and status (ok, failed)", ("run", "benchmark", "status")),
        "indexmem_grid_tokens": ("tokens, by stage (prefill, decode)", ("run", "stage")),
        "indexmem_grid_lost_units": ("units of work whose actor died", ("run",)),
        "indexmem_training_tokens": ("tokens trained on, all workers", ("run",)),
    }
)
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "indexmem_grid_rows_wanted": ("rows of the whole grid", ("run",)),
        "indexmem_grid_rows_stored": ("rows of the grid that the store holds, other runs' included", ("run",)),
        "indexmem_grid_cells": ("cells, by state (done, failing, all)", ("run", "state")),
        "indexmem_grid_queued_rows": ("rows that no actor has yet", ("run",)),
        "indexmem_grid_actors": ("actors that have loaded the model", ("run",)),
        "indexmem_grid_batch_rows": ("rows in the largest decode batch of the last unit", ("run",)),
        "indexmem_grid_cache_bytes": ("K, V, indexer keys and memory that such a batch holds", ("run",)),
        "indexmem_training_step": ("steps done", ("run",)),
        "indexmem_training_steps_wanted": ("steps of the schedule", ("run",)),
        "indexmem_training_loss": ("loss of the last step, by module", ("run", "module")),
        "indexmem_training_grad_norm": ("gradient norm of the last step, by module", ("run", "module")),
        "indexmem_training_learning_rate": ("learning rate of the last step", ("run",)),
        "indexmem_training_tokens_per_second": ("speed of the last step, all workers", ("run",)),
    }
)
HISTOGRAMS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {"indexmem_grid_unit_seconds": ("time that an actor took for a unit", ("run",))}
)


def counter(name: str) -> Counter:
    """One of COUNTERS. Several of one name in a process add up."""
    return Counter(name, *COUNTERS[name])


def gauge(name: str) -> Gauge:
    """One of GAUGES."""
    return Gauge(name, *GAUGES[name])


def histogram(name: str) -> Histogram:
    """One of HISTOGRAMS, in seconds."""
    text, labels = HISTOGRAMS[name]
    return Histogram(name, text, UNIT_SECONDS, labels)
