"""Addresses within a report: what templates/link.js reads."""

from __future__ import annotations

from urllib.parse import quote


def fragment(section: str, **shown: str) -> str:
    """What opens the report at a section with these choices: '#samples&method=snapkv&budget=90%25'.

    samples: model (its number), benchmark, method, budget, against, order, sample; kept: sample, method, budget,
    against, against-budget, layer, head; everywhere: on (the benchmark of the filter), hide (a method), view (model).
    """
    return "&".join([f"#{section}", *(f"{name}={quote(value, safe='')}" for name, value in shown.items() if value)])
