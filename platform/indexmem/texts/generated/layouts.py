"""How an entry of a list is written: a row of a table, an object, a line of a log, a block.

A layout gets the names of the fields and an entry's values; all entries of a list have the same layout and fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WriteEntry = Callable[[Sequence[str], Sequence[str]], str]


@dataclass(frozen=True)
class Layout:
    """`entry` writes one; `header` stands above all of them."""

    entry: WriteEntry
    header: Callable[[Sequence[str]], str] = lambda fields: ""


def _separated(separator: str) -> Layout:
    return Layout(lambda fields, values: separator.join(values), lambda fields: separator.join(fields) + "\n")


def _pairs(form: str, between: str, start: str = "", end: str = "") -> Layout:
    """Each field with its value in `form`."""
    return Layout(lambda fields, values: start + between.join(form.format(f, v) for f, v in zip(fields, values)) + end)


def _json(indent: int | None = None) -> Layout:
    """Numbers as numbers."""
    return Layout(
        lambda fields, values: json.dumps(
            {field: literal(value) for field, value in zip(fields, values)}, ensure_ascii=False, indent=indent
        )
    )


def literal(value: str) -> str | int:
    """A number that is written as one, else the text itself."""
    return int(value) if value.isdecimal() and not (len(value) > 1 and value[0] == "0") else value


def quoted(value: str) -> str:
    """As a literal of most languages."""
    return json.dumps(literal(value), ensure_ascii=False)


TABLES = (
    _separated(","),
    _separated(";"),
    _separated("\t"),
    _separated(" | "),
    Layout(
        lambda fields, values: f"| {' | '.join(values)} |",
        lambda fields: f"| {' | '.join(fields)} |\n|{'---|' * len(fields)}\n",
    ),
    Layout(
        lambda fields, values: "".join(value.ljust(18) + " " for value in values).rstrip(),
        lambda fields: "".join(field.ljust(18) + " " for field in fields).rstrip() + "\n",
    ),
)
OBJECTS = (
    _json(),
    _json(2),
    _pairs('{}="{}"', " ", "<entry ", "/>"),
    _pairs("<{0}>{1}</{0}>", "", "<row>", "</row>"),
    _pairs("{}: {}", "\n  ", "- "),
    Layout(lambda fields, values: f"INSERT INTO list ({', '.join(fields)}) VALUES ({', '.join(map(quoted, values))});"),
)
BLOCKS = (
    _pairs("{}: {}", "\n", end="\n"),
    _pairs("{} = {}", "\n", "[entry]\n", "\n"),
    _pairs("{}: {}", ", ", "- "),
    _pairs("{} {}", "; ", end="."),
    Layout(
        lambda fields, values: (
            f"{values[0]}\n" + "\n".join(f"  {f}: {v}" for f, v in zip(fields[1:], values[1:])) + "\n"
        )
    ),
)
LINES = (_pairs("{}={}", " "), _pairs("{}: {}", ", "), _pairs("{}={}", ", ", "(", ")"))  # of logs, after their head

# Settings: the head of a group, and a line of it; k, K, t and v are a key in small and capital letters and as a title,
# and its value; q is the value as a literal.
SETTINGS = (
    ("[{k}]", "{k} = {v}"),
    ("{k}:", "  {k}: {v}"),
    ("# {t}", "{k}={v}"),
    ("# {t}", "export {K}={v}"),
    ("# {t}", "{k} = {q}"),
    ("// {t}", "const {k} = {q};"),
    ("/* {t} */", "#define {K} {q}"),
    ("## {t}", "- {t}: {v}"),
    ("{t}", "{t} ........ {v}"),
    ("# {t}", "set {k} {v}"),
    ("-- {t}", "{k}: {q},"),
)
