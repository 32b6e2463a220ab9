"""Rows of many sources -> sections, one for each protocol. Nothing is ranked across sections, models or builds.

Two rows are of one protocol when all of `format.PROTOCOL` is equal. Where one of MUST_BE_KNOWN is not recorded, nobody
can say that it is equal: such rows stand alone, source by source, and are not ranked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.board.format import MUST_BE_KNOWN, PROTOCOL
from indexmem.board.lines import Line, lines_of
from indexmem.results.schema import FULL_LABEL

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ProtocolSection:
    """A protocol, PROTOCOL -> value, its lines in display order and what to know about them."""

    protocol: Row
    source: str  # whose rows alone, where something is not recorded; else ""
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    @property
    def unknown(self) -> tuple[str, ...]:
        return unknown(self.protocol)


def unknown(protocol: Row) -> tuple[str, ...]:
    """What of a protocol is not recorded and would have to be for a ranking."""
    return tuple(name for name in MUST_BE_KNOWN if protocol[name] is None)


def sections(rows: pa.Table) -> list[ProtocolSection]:
    """Sections of BOARD_SCHEMA rows, those that are ranked first, then by the number of lines."""
    found = []
    keys = _different(rows, (*PROTOCOL, "who"))
    merged: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for key in keys:
        source = key["who"] if unknown(key) else ""
        merged[(*(key[name] for name in PROTOCOL), source)].append(key)
    for alike in merged.values():
        protocol = {name: alike[0][name] for name in PROTOCOL}
        own = pa.concat_tables([_where(rows, key) for key in alike])
        source = alike[0]["who"] if unknown(protocol) else ""
        told, notes = _of_models(own, ranked=not unknown(protocol))
        found.append(ProtocolSection(protocol, source, told, notes))
    return sorted(found, key=lambda section: (bool(section.unknown), -len(section.lines), str(section.protocol)))


def _of_models(rows: pa.Table, *, ranked: bool) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    keys = _different(rows, ("model", "model_revision"))
    named = Counter(key["model"] for key in keys)
    told: list[Line] = []
    notes: list[str] = []
    for key in sorted(keys, key=lambda key: (key["model"], key["model_revision"] or "")):
        several = named[key["model"]] > 1
        name = f"{key['model']} [{_short(key['model_revision'])}]" if several else key["model"]
        own, caveats = lines_of(_labelled(_where(rows, key)), name, ranked=ranked)
        told += own
        notes += [f"{name}: {caveat}" for caveat in caveats]
    return tuple(told), tuple(notes)


def _labelled(rows: pa.Table) -> pa.Table:
    """`method` and `benchmark` name what they stand for uniquely: what differs besides is added in brackets."""
    # Who wrote a method counts only where its code is not recorded: then the same name need not be the same method.
    anonymous = pc.and_(pc.is_null(rows["code"]), pc.not_equal(rows["method"], FULL_LABEL))
    author = pc.if_else(anonymous, rows["who"], pa.scalar(None, pa.string()))
    rows = rows.append_column("author", author)
    rows = _unique(rows, "method", ("checkpoint", "code", "author"))
    return _unique(rows, "benchmark", ("build", "prompts"))


def _unique(rows: pa.Table, name: str, others: Sequence[str]) -> pa.Table:
    keys = _different(rows, (name, *others))
    named = Counter(key[name] for key in keys)
    labels = {}
    for key in keys:
        differing = [other for other in others if len({k[other] for k in keys if k[name] == key[name]}) > 1]
        extra = " ".join(_short(key[other]) for other in differing)
        labels[tuple(key.values())] = f"{key[name]} [{extra}]" if named[key[name]] > 1 else key[name]
    texts = zip(*(rows[column].to_pylist() for column in (name, *others)))
    column = pa.array([labels[text] for text in texts], pa.string())
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _short(text: str | None) -> str:
    """Hashes are told apart by their first letters."""
    return "not recorded" if not text else text if len(text) < 14 or " " in text else text[:10]


def _different(rows: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.select(list(columns)).group_by(list(columns)).aggregate([]).to_pylist()
    return found


def _where(rows: pa.Table, key: Row) -> pa.Table:
    return rows.filter(reduce(pc.and_, _equalities(rows, key)))


def _equalities(rows: pa.Table, key: Row) -> Iterator[pa.ChunkedArray]:
    for name, value in key.items():
        yield pc.is_null(rows[name]) if value is None else pc.fill_null(pc.equal(rows[name], value), False)
