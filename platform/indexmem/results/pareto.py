"""Which of several points are not beaten in everything by another one."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that no other one dominates, where small is good in every coordinate; the first coordinate
    ascends. Equal points stay together.
    """
    order = sorted(range(len(points)), key=lambda index: (tuple(points[index]), index))
    kept: list[int] = []
    for index in order:  # whatever dominates a point comes before it
        if not any(_dominates(points[other], points[index]) for other in kept):
            kept.append(index)
    return kept


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x <= y for x, y in zip(a, b)) and tuple(a) != tuple(b)
