"""The statistics of this project in one place; docs/statistics.md says which is used when."""

from __future__ import annotations

from indexmem.results.intervals import Interval, macro_ci, mean_ci, mean_over
from indexmem.results.joint import max_t
from indexmem.results.paired import Difference, holm, paired_difference
from indexmem.results.power import minimum_detectable_difference, samples_needed
from indexmem.results.units import Design, Floats

__all__ = [
    "Design",
    "Difference",
    "Floats",
    "Interval",
    "holm",
    "macro_ci",
    "max_t",
    "mean_ci",
    "mean_over",
    "minimum_detectable_difference",
    "paired_difference",
    "samples_needed",
]
