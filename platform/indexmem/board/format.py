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
class Field:
    """`kind`: str, int or float; `required`: no row does without; `wrong`: what is wrong with a value of the kind."""

    kind: type
    required: bool = False
    wrong: Callable[[Any], str | None] = lambda value: None


def _budget(text: str) -> str | None:
    try:
        Budget.parse(text)
    except ValueError as error:
        return str(error)
    return None


def _share(number: float) -> str | None:
    return None if 0 <= number <= 1 else "a number from 0 to 1"


def _not_negative(number: float) -> str | None:
    return None if 0 <= number <= MOST_NUMBER else "a number that is not negative"


def _positive(number: float) -> str | None:
    return None if 0 < number <= MOST_NUMBER else "a number above 0"


def _name(text: str) -> str | None:
    return None if text.strip() else "a text that is not empty"


def _benchmark(text: str) -> str | None:
    return f"another name: '{MEAN}' stands for all benchmarks" if text == MEAN else _name(text)


def _question(text: str) -> str | None:
    return None if text in QUESTIONS else "after or before"


def _object(text: str) -> str | None:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    texts = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return None if texts else 'an object of texts, {"torch": "2.11.0"}'


def _date(text: str) -> str | None:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return "a date such as 2026-11-29T06:00:00+00:00"
    return None


FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        "board_version": Field(int, True, lambda n: None if n == BOARD_VERSION else f"{BOARD_VERSION}"),
        # what was asked
        "model": Field(str, True, _name),
        "model_revision": Field(str),
        "method": Field(str, True, _name),
        "checkpoint": Field(str),
        "code": Field(str),
        "budget": Field(str, True, _budget),
        "benchmark": Field(str, True, _benchmark),
        "build": Field(str, True, _name),
        "prompts": Field(str, True, _name),
        # the protocol
        "engine": Field(str, True, _name),
        "length": Field(int, wrong=_positive),
        "sinks": Field(int, wrong=_not_negative),
        "question": Field(str, wrong=_question),
        "decoding": Field(str),
        "dtype": Field(str),
        "seed": Field(int),
        "settings": Field(str),
        # what came out
        "sample": Field(str, wrong=_name),
        "repeat": Field(int, wrong=_not_negative),
        "group": Field(str),
        "samples": Field(int, wrong=_positive),
        "score": Field(float, True, _share),
        # what it cost
        "evicted": Field(float, wrong=_share),
        "held_bytes": Field(float, wrong=_not_negative),
        "full_bytes": Field(float, wrong=_positive),
        "prefill_ms": Field(float, wrong=_not_negative),
        "score_ms": Field(float, wrong=_not_negative),
        "decode_ms": Field(float, wrong=_not_negative),
        # where it comes from
        "who": Field(str),
        "commit": Field(str),
        "versions": Field(str, wrong=_object),
        "device": Field(str),
        "host": Field(str),
        "date": Field(str, wrong=_date),
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
    elif wanted := field.wrong(value):
        yield (
            f"'{name}' must be {wanted}; got {value!r:.80}" if name != "budget" else f"'budget' {value!r:.80}: {wanted}"
        )


def _parsed(text: Any) -> Budget | None:
    try:
        return Budget.parse(text)
    except ValueError:
        return None
