"""The registered methods as a table for the command line."""

from __future__ import annotations

from indexmem.eviction.methods.names import DECODING, EVICTS_NOTHING, INDEXMEM, PRETRAINED, TRAINED_BY_SPEC
from indexmem.eviction.methods.registry import METHODS
from indexmem.plugins.listing import OURS, Listed, offered, table
from indexmem.plugins.load import HOW

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
    """One line for each method: name, what it scores tokens by, where it comes from, notes."""
    rows: list[Listed] = [(name, entry.scores, OURS, ", ".join(method_notes(name))) for name, entry in METHODS.items()]
    notes = "trained by `indexmem distill`, ranks while decoding too"
    rows.append((INDEXMEM, "the indexer, and a memory of what it evicts", OURS, notes))
    rows += [(*row, "") for row in offered("methods", [*METHODS, INDEXMEM])]
    return "\n".join(
        [
            table(rows),
            "",
            "NAME+memory adds a memory trained for NAME's evictions.",
            "kvpress:PRESS is any scorer of kvpress, for example kvpress:CURPress.",
            HOW,
        ]
    )
