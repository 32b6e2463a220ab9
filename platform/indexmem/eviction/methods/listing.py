"""The registered methods as a table for the command line."""

from __future__ import annotations

from indexmem.eviction.methods.registry import DECODING, EVICTS_NOTHING, INDEXMEM, METHODS, PRETRAINED, TRAINED_BY_SPEC

OWN_PASS = "own pass over the context"


def method_notes(name: str) -> tuple[str, ...]:
    """What sets a registered method apart from a scorer that works anywhere, for free."""
    notes = {
        OWN_PASS: METHODS[name].kind.own_pass,
        "trained by `indexmem distill`": name in TRAINED_BY_SPEC,
        "needs weights": name in PRETRAINED,
        "ranks while decoding too": name in DECODING,
        "keeps every token": name in EVICTS_NOTHING,
    }
    return tuple(note for note, holds in notes.items() if holds)


def methods_table() -> str:
    """One line for each method: name, what it scores tokens by, notes."""
    rows = [(name, entry.scores, ", ".join(method_notes(name))) for name, entry in METHODS.items()]
    rows.append(
        (
            INDEXMEM,
            "the indexer, and a memory of what it evicts",
            "trained by `indexmem distill`, ranks while decoding too",
        )
    )
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {scores:<{widths[1]}}  {notes}".rstrip() for name, scores, notes in rows]
    return "\n".join([*lines, "", "NAME+memory adds a memory trained for NAME's evictions."])
