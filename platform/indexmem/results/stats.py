"""The statistics of this project in one place; docs/statistics.md says which is used when."""

from __future__ import annotations

from indexmem.results.intervals import Floats, Interval, cluster_means, mean_ci, mean_over
from indexmem.results.paired import Difference, holm, paired_difference
from indexmem.results.power import minimum_detectable_difference, samples_needed

__all__ = [
    "Difference",
    "Floats",
    "Interval",
    "cluster_means",
    "holm",
    "mean_ci",
    "mean_over",
    "minimum_detectable_difference",
    "paired_difference",
    "samples_needed",
]
