"""Which windows of the buffer make up a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence


def nearest(lengths: Sequence[int], to: int, count: int) -> list[int]:
    """Places of the `count` windows that are nearest in length to `to`: a batch with little padding."""
    return _by_distance(lengths, to)[:count]


def first_fit(lengths: Sequence[int], to: int, room: int) -> list[int]:
    """Places of the windows that together fill `room` tokens: the nearest in length first, each that still fits.

    Of similar length, so that the padded batch into which attention and losses split the row has little padding too.
    """
    places = []
    for place in _by_distance(lengths, to):
        if lengths[place] <= room:
            places.append(place)
            room -= lengths[place]
    return places


def _by_distance(lengths: Sequence[int], to: int) -> list[int]:
    """Of two equally near, the one that has waited longer comes first."""
    return sorted(range(len(lengths)), key=lambda place: abs(lengths[place] - to))
