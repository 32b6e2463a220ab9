"""`records`: lists and settings whose entries differ by their values alone, as in exports, logs and configuration.

Prose has few numbers, codes and names, and what training never shows as worth keeping is not kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from indexmem.texts.generated.layouts import BLOCKS, LINES, OBJECTS, SETTINGS, TABLES, Layout, quoted
from indexmem.texts.generated.values import GENERATED, SPELLINGS, Spelling, ValueDraw, vocabulary

DOCUMENTS = 1500
SHORTEST, LONGEST = 500, 2400  # characters
MOST_FIELDS = 6
LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARN", "ERROR")

THEMES: Mapping[str, str] = GENERATED["themes"]  # what is listed -> its fields and their kinds (values.py)
HEADS = ("{} {} {} {}: {}", "[{}T{}] {} {} - {}", "{1} {2} [{3}] {4}")  # date, time, level, program, what it says
STYLES: Sequence[Callable[[str], str]] = (str, str, str.capitalize, str.upper, lambda name: f"item{name.capitalize()}")


def records(prose: Sequence[str]) -> list[str]:
    """Generated documents; `prose` gives the words."""
    draw = ValueDraw(random.Random("records"), vocabulary(prose))
    return [_document(draw) for _ in range(DOCUMENTS)]


def lines(draw: ValueDraw) -> Iterator[str]:
    """Entries of one list without end, all in one line each."""
    layout, fields, kinds = draw.random.choice((*TABLES, *LINES)), *_schema(draw)
    while True:
        yield layout.entry(fields, [kind(draw) for kind in kinds])


def _document(draw: ValueDraw) -> str:
    """One list or group of settings, or two."""
    length, parts = draw.between(SHORTEST, LONGEST), draw.random.choice((1, 1, 2))
    return "\n\n".join(_part(draw, length // parts) for _ in range(parts))


def _part(draw: ValueDraw, length: int) -> str:
    make = draw.random.choice((_table, _table, _objects, _log, _settings))
    title = draw.random.choice(("", "", "{w}\n\n", "# {w}\n\n", "{w}, {p}, {d}\n\n"))
    head = title.format(w=draw.value("phrase").capitalize(), p=draw.value("place"), d=draw.value("date"))
    return head + _filled(make(draw), length)


def _filled(pieces: Iterator[str], length: int) -> str:
    """As many lines as `length` characters need."""
    written, found = 0, []
    while written < length:
        found.append(next(pieces))
        written += len(found[-1]) + 1
    return "\n".join(found)


def _schema(draw: ValueDraw) -> tuple[list[str], list[Spelling]]:
    """Names of fields, and how their values are written: some of a theme's, at times one of another kind."""
    theme = THEMES[draw.random.choice(list(THEMES))]
    first, *rest = [field.split(":") for field in theme.split()]
    chosen = [first, *(field for field in rest if draw.random.random() < 0.6)][:MOST_FIELDS]
    if draw.random.random() < 0.3 or len(chosen) == 1:
        chosen.append([draw.word(), draw.random.choice(list(SPELLINGS))])
    style = draw.random.choice(STYLES)
    return [style(name) for name, _ in chosen], [draw.spelling(kind) for _, kind in chosen]


def _entries(draw: ValueDraw, layout: Layout) -> Iterator[str]:
    fields, kinds = _schema(draw)
    if header := layout.header(fields):
        yield header.removesuffix("\n")
    while True:
        yield layout.entry(fields, [kind(draw) for kind in kinds])


def _table(draw: ValueDraw) -> Iterator[str]:
    return _entries(draw, draw.random.choice(TABLES))


def _objects(draw: ValueDraw) -> Iterator[str]:
    return _entries(draw, draw.random.choice((*OBJECTS, *BLOCKS)))


def _log(draw: ValueDraw) -> Iterator[str]:
    """Lines of several programs, each with fields of its own, in the order of their times."""
    layout, second = draw.random.choice(LINES), draw.between(0, 20_000)
    date, form = draw.date("{y}-{m:02d}-{d:02d}"), draw.random.choice(HEADS)
    programs = [(draw.word(), draw.word(), *_schema(draw)) for _ in range(draw.between(1, 4))]
    while True:
        program, did, fields, kinds = draw.random.choice(programs)
        second = (second + draw.between(0, 40)) % 86_400
        time = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        said = f"{did} {layout.entry(fields, [kind(draw) for kind in kinds])}"
        yield form.format(date, time, draw.random.choice(LEVELS), program, said)


def _settings(draw: ValueDraw) -> Iterator[str]:
    """Groups of settings, each with a key of its own and a value of any kind."""
    head, line = draw.random.choice(SETTINGS)
    while True:
        yield head.format(**_setting(draw))
        for _ in range(draw.between(3, 10)):
            yield line.format(**_setting(draw))
        yield ""


def _setting(draw: ValueDraw) -> dict[str, str]:
    key, value = f"{draw.word()}_{draw.word()}", draw.value(draw.random.choice(list(SPELLINGS)))
    return {"k": key, "K": key.upper(), "t": key.replace("_", " ").capitalize(), "v": value, "q": quoted(value)}
