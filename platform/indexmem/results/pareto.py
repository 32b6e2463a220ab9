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
        point = tuple(points[index])
        if not any(tuple(points[k]) != point and all(a <= b for a, b in zip(points[k], point)) for k in kept):
            kept.append(index)
    return kept
