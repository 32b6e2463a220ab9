"""`facts`: prose into which short facts and lines of records are strewn.

The prose around them says nothing about a fact, so it can be kept in no other way than by keeping its tokens. Where a
document says one thing of several people, they must also be told apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from indexmem.texts.generated.records import lines
from indexmem.texts.generated.values import GENERATED, ValueDraw, vocabulary

STORIES: Sequence[Sequence[str]] = GENERATED["stories"]  # of one to three sentences each
PASSES = 3  # over the essays, which are short; each cuts and fills them in another way
BOOKS_KEPT = 0.35  # of the passages of the books
SHORTEST, LONGEST = 800, 4000  # characters of a passage
MOST_FACTS = 10
SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s+[\"'(]?[A-Z])")


def facts(essays: Sequence[str], books: Sequence[str]) -> list[str]:
    """Passages of the essays, each several times, and of some of the books, with facts in them."""
    draw = ValueDraw(random.Random("facts"), vocabulary((*essays, *books)))
    passages = [passage for _ in range(PASSES) for essay in essays for passage in _passages(draw, essay)]
    passages += [p for book in books for p in _passages(draw, book) if draw.random.random() < BOOKS_KEPT]
    return [_strewn(draw, passage) for passage in passages]


def _passages(draw: ValueDraw, document: str) -> Iterator[list[str]]:
    """The sentences of a document in passages of random length; a short rest is left out."""
    passage, room = [], draw.between(SHORTEST, LONGEST)
    for sentence in SENTENCE_END.split(document):
        passage.append(sentence)
        room -= len(sentence)
        if room <= 0:
            yield passage
            passage, room = [], draw.between(SHORTEST, LONGEST)


def _strewn(draw: ValueDraw, passage: Sequence[str]) -> str:
    """The passage with facts between its sentences; those of one story stay in their order."""
    told = draw.between(1, MOST_FACTS)
    inserts: list[tuple[int, str]] = []
    while len(inserts) < told:
        found = _record_lines(draw) if draw.random.random() < 0.2 else _similar_stories(draw)
        found = found[: told - len(inserts)]
        places = sorted(draw.between(1, len(passage)) for _ in found)
        inserts += zip(places, found)
    parts = []
    for number, sentence in enumerate(passage):
        parts += [text for place, text in inserts if place == number]
        parts.append(sentence)
    parts += [text for place, text in inserts if place == len(passage)]
    return "".join(parts).strip()


def _similar_stories(draw: ValueDraw) -> list[str]:
    """One story, or the same one of several people, places or things."""
    story = draw.random.choice(STORIES)
    casts = [_Cast(draw) for _ in range(draw.random.choice((1, 1, 1, 2, 3, 4)))]
    return [" " + sentence.format_map(cast) for sentence in story for cast in casts]


def _record_lines(draw: ValueDraw) -> list[str]:
    """One to three entries of one list, each a paragraph of its own."""
    entries = lines(draw)
    return [f"\n\n{next(entries)}\n\n" for _ in range(draw.between(1, 3))]


class _Cast(dict[str, str]):
    """The values of a story's slots, each drawn when it is first asked for."""

    def __init__(self, draw: ValueDraw) -> None:
        super().__init__()
        self.draw = draw

    def __missing__(self, slot: str) -> str:
        self[slot] = value = self.draw.value(slot.partition("_")[0])
        return value
