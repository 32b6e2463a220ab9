"""The row format of the board: a row is one sample in one cell, or the mean of a cell. docs/board.md describes it.

A protocol is what must be equal for two rows to be ranked together: PROTOCOL. Bytes are bytes, times milliseconds.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.schema import MEAN
from indexmem.results.schema import FULL_LABEL

BOARD_VERSION = 1
MOST_TEXT = 2_000  # characters of a text
MOST_NUMBER = 2**53  # the largest whole number that JSON readers agree on
QUESTIONS = ("after", "before")  # compressed before the question is seen, or with it


@dataclass(frozen=True)
class Check:
    """What a value must be besides of its kind: `holds` may raise a ValueError that says what is wrong."""

    holds: Callable[[Any], Any]
    wanted: str


@dataclass(frozen=True)
class Field:
    """`kind`: str, int or float; `required`: no row does without."""

    kind: type
    required: bool = False
    check: Check | None = None


def _is_object(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and all(isinstance(value, str) for value in found.values())


def _is_date(text: str) -> bool:
    try:
        return bool(dt.datetime.fromisoformat(text))
    except ValueError:
        return False


THIS_VERSION = Check(lambda number: number == BOARD_VERSION, f"{BOARD_VERSION}")
NAME = Check(str.strip, "a text that is not empty")
BENCHMARK = Check(lambda text: text.strip() and text != MEAN, f"a name, and not '{MEAN}', which stands for all of them")
BUDGET = Check(Budget.parse, "a budget")
QUESTION = Check(lambda text: text in QUESTIONS, " or ".join(QUESTIONS))
VERSIONS = Check(_is_object, 'an object of texts, {"torch": "2.11.0"}')
DATE = Check(_is_date, "a date such as 2026-11-29T06:00:00+00:00")
SHARE = Check(lambda number: 0 <= number <= 1, "a number from 0 to 1")
NOT_NEGATIVE = Check(lambda number: number >= 0, "a number that is not negative")
POSITIVE = Check(lambda number: number > 0, "a number above 0")

FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        "board_version": Field(int, True, THIS_VERSION),
        # what was asked
        "model": Field(str, True, NAME),
        "model_revision": Field(str),
        "method": Field(str, True, NAME),
        "checkpoint": Field(str),
        "code": Field(str),
        "budget": Field(str, True, BUDGET),
        "benchmark": Field(str, True, BENCHMARK),
        "build": Field(str, True, NAME),
        "prompts": Field(str, True, NAME),
        # the protocol
        "engine": Field(str, True, NAME),
        "length": Field(int, check=POSITIVE),
        "sinks": Field(int, check=NOT_NEGATIVE),
        "question": Field(str, check=QUESTION),
        "decoding": Field(str),
        "dtype": Field(str),
        "seed": Field(int),
        "settings": Field(str),
        # what came out
        "sample": Field(str, check=NAME),
        "repeat": Field(int, check=NOT_NEGATIVE),
        "group": Field(str),
        "samples": Field(int, check=POSITIVE),
        "score": Field(float, True, SHARE),
        # what it cost
        "evicted": Field(float, check=SHARE),
        "held_bytes": Field(float, check=NOT_NEGATIVE),
        "full_bytes": Field(float, check=POSITIVE),
        "prefill_ms": Field(float, check=NOT_NEGATIVE),
        "score_ms": Field(float, check=NOT_NEGATIVE),
        "decode_ms": Field(float, check=NOT_NEGATIVE),
        # where it comes from
        "who": Field(str),
        "commit": Field(str),
        "versions": Field(str, check=VERSIONS),
        "device": Field(str),
        "host": Field(str),
        "date": Field(str, check=DATE),
    }
)
PROTOCOL = ("engine", "length", "sinks", "question", "decoding", "dtype", "seed", "settings")
MUST_BE_KNOWN = ("sinks", "question", "decoding", "dtype")  # without one of them nothing in a section is ranked
KINDS: Mapping[type, pa.DataType] = MappingProxyType({str: pa.string(), int: pa.int64(), float: pa.float64()})
KIND_NAMES: Mapping[type, str] = MappingProxyType({str: "text", int: "a whole number", float: "a number"})
BOARD_SCHEMA = pa.schema([(name, KINDS[field.kind]) for name, field in FIELDS.items()])


def as_board_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` with every field; `versions` may be an object, and is JSON in a table."""
    versions = row.get("versions")
    told = json.dumps(versions, sort_keys=True) if isinstance(versions, dict) else versions
    return dict.fromkeys(FIELDS) | dict(row) | {"versions": told, "repeat": row.get("repeat") or 0}


def problems(row: Any) -> Iterator[str]:
    """What is wrong with a row, a sentence each; nothing for a good one."""
    if not isinstance(row, dict):
        yield f"expected an object with fields such as 'model'; got {row!r:.80}"
        return
    if unknown := sorted(map(str, row.keys() - FIELDS.keys())):
        yield f"unknown field '{unknown[0]:.80}'; fields: {', '.join(FIELDS)}"
    full = as_board_row({name: value for name, value in row.items() if name in FIELDS})
    for name, field in FIELDS.items():
        if full[name] is not None:
            yield from _wrong(name, field, full[name])
        elif field.required:
            yield f"'{name}' is missing"
    if full["method"] == FULL_LABEL and _parsed(full["budget"]) not in (None, NOTHING_EVICTED):
        yield f"'{FULL_LABEL}' is the cache that evicts nothing: its budget is 0%, got {full['budget']!r:.80}"
    if full["sample"] is not None and full["samples"] is not None:
        yield "'samples' belongs to the mean of a cell; a row with 'sample' is one sample"


def _wrong(name: str, field: Field, value: Any) -> Iterator[str]:
    kinds = (int, float) if field.kind is float else field.kind
    if not isinstance(value, kinds) or isinstance(value, bool):
        yield f"'{name}' must be {KIND_NAMES[field.kind]}, got {value!r:.80}"
    elif isinstance(value, str) and len(value) > MOST_TEXT:
        yield f"'{name}' has {len(value)} characters; {MOST_TEXT} at most"
    elif isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= MOST_NUMBER):
        yield f"'{name}' must be a number that is finite and not above 2^53, got {value!r:.80}"
    elif field.check is not None:
        try:
            if not field.check.holds(value):
                yield f"'{name}' must be {field.check.wanted}; got {value!r:.80}"
        except ValueError as error:
            yield f"'{name}' {value!r:.80}: {error}"


def _parsed(text: Any) -> Budget | None:
    try:
        return Budget.parse(text)
    except ValueError:
        return None
