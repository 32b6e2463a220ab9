"""Variants of one method against their baseline: paired differences, one error rate for all variants of a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indexmem.config.budget import Budget
from indexmem.errors import UserError
from indexmem.report.palette import family
from indexmem.results.comparison import Difference
from indexmem.results.summary import MEAN, Summary, leads

SPECIAL = {"indexmem": "indexer"}  # indexmem is the indexer with memory


@dataclass(frozen=True)
class Ablation:
    """What changes of `baseline` do at one budget: variant -> variant - baseline, mean over benchmarks."""

    baseline: str
    budget: Budget
    variants: Mapping[str, Difference]


def families(methods: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """baseline -> its variants. Labels with one root belong together, the plainest of them is the baseline."""
    found: dict[str, list[str]] = {}
    for method in methods:
        found.setdefault(root(method), []).append(method)
    plainest = ((min(group, key=lambda m: (m != name, len(m), m)), group) for name, group in found.items())
    return {base: tuple(m for m in group if m != base) for base, group in plainest if len(group) > 1}


def root(method: str) -> str:
    """Whose variant a method is: 'snapkv+memory(window_size=8)' -> 'snapkv', 'indexmem' -> 'indexer'."""
    name = family(method)
    return SPECIAL.get(name, name)


def ablations(summary: Summary, baseline: str | None = None) -> tuple[Ablation, ...]:
    """By family and budget; with `baseline`, all other methods against that one.

    Raises UserError when `baseline` was not evaluated.
    """
    groups = families(summary.methods)
    if baseline is not None:
        if baseline not in summary.methods:
            raise UserError(f"No method '{baseline}' to compare with. Evaluated: {', '.join(summary.methods)}.")
        groups = {baseline: tuple(m for m in summary.methods if m != baseline)}
    if not summary.benchmarks:
        return ()
    made = (_ablation(summary, base, variants, b) for base, variants in groups.items() for b in summary.budgets)
    return tuple(ablation for ablation in made if ablation.variants)


def _ablation(summary: Summary, baseline: str, variants: Sequence[str], budget: Budget) -> Ablation:
    """Variants without enough samples of the baseline's are left out."""
    over = (baseline, budget)
    shared = [(v, budget) for v in variants if summary.difference((v, budget), over, MEAN) is not None]
    common = summary.matched([over, *shared], MEAN) if shared else None
    if common is None or over not in common.columns:
        return Ablation(baseline, budget, {})
    behind = leads(common, over, picked=False)
    return Ablation(baseline, budget, {method: lead.mirrored for (method, _), lead in behind.items()})
