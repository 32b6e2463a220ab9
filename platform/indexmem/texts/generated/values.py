"""Values such as real data hold: numbers, codes, names, dates, prices. Each kind has several spellings.

Only `random()`, `randrange`, `getrandbits` and `choice` are drawn with: they give the same in all supported Pythons.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

LETTERS, DIGITS, HEX = "ABCDEFGHJKLMNPQRSTUVWXYZ", "0123456789", "0123456789abcdef"
PLACEHOLDERS = MappingProxyType({"A": LETTERS, "a": LETTERS.lower(), "9": DIGITS, "x": HEX})


# Word lists, themes of lists and stories.
GENERATED: Mapping[str, Any] = MappingProxyType(
    yaml.safe_load(files("indexmem.texts.generated").joinpath("tables.yaml").read_text(encoding="utf-8"))
)
MONTHS, FIRST_NAMES = GENERATED["months"].split(), GENERATED["first_names"].split()
ONSETS, CODAS = GENERATED["onsets"].split(), GENERATED["codas"].split()
NAME_ENDS, PLACE_ENDS = GENERATED["name_ends"].split(), GENERATED["place_ends"].split()
FIRM_ENDS, STATES = GENERATED["firm_ends"].split(), GENERATED["states"].split()
DOMAINS, SUFFIXES = GENERATED["domains"].split(), GENERATED["suffixes"].split()
NOUN = re.compile(r"\b(?:the|an?) ([a-z]{3,9}[a-rt-z])\b")
RARE = 6  # a word that follows an article less often may be no noun


def vocabulary(prose: Iterable[str]) -> Sequence[str]:
    """Words that often follow an article, nouns in the singular for the most part, in alphabetical order."""
    counts = Counter(word for document in prose for word in NOUN.findall(document))
    return sorted(word for word, count in counts.items() if count >= RARE)


@dataclass(frozen=True)
class ValueDraw:
    """Draws values of every kind in `SPELLINGS`."""

    random: random.Random
    words: Sequence[str]

    def spelling(self, kind: str) -> Spelling:
        """One way to write values of a kind, for all entries of a list."""
        return self.random.choice(SPELLINGS[kind])

    def value(self, kind: str) -> str:
        """A value of a kind in any spelling."""
        return self.spelling(kind)(self)

    def between(self, least: int, most: int) -> int:
        return self.random.randrange(least, most + 1)

    def number(self) -> str:
        """Of one to nine digits, each length as often as the others."""
        length = self.between(1, 9)
        return str(self.random.randrange(10 ** (length - 1), 10**length))

    def shaped(self, shape: str) -> str:
        """A string of the shape `AA-99`: letters, small letters (a), digits and hexadecimal digits (x)."""
        return "".join(self.random.choice(PLACEHOLDERS.get(character, character)) for character in shape)

    def word(self) -> str:
        return self.random.choice(self.words)

    def syllable(self) -> str:
        return self.random.choice(ONSETS) + self.random.choice("aeiou") + self.random.choice(CODAS)

    def name(self, ends: Sequence[str]) -> str:
        return (self.syllable() + self.random.choice(ends)).capitalize()

    def date(self, form: str) -> str:
        """With day, month (a number or its name) and year put into `form`."""
        month = self.between(1, 12)
        return form.format(d=self.between(1, 28), m=month, name=MONTHS[month - 1], y=self.between(1950, 2035))

    def time(self, form: str) -> str:
        return form.format(h=self.between(0, 23), m=self.between(0, 59), s=self.between(0, 59))

    def stamp(self, form: str) -> str:
        return self.date(form) + self.time("{h:02d}:{m:02d}:{s:02d}")

    def identifier(self, form: str) -> str:
        """128 random bits as hexadecimal digits, cut by `form`."""
        digits = f"{self.random.getrandbits(128):032x}"
        return form.format(digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])

    def person(self, form: str) -> str:
        first, last = self.random.choice(FIRST_NAMES), self.name(NAME_ENDS)
        return form.format(first=first, last=last, initial=first[0], small=first.lower(), smaller=last.lower())

    def email(self, form: str) -> str:
        return f"{self.person(form)}@{self.word()}{self.syllable()}.{self.random.choice(DOMAINS)}"


Spelling = Callable[[ValueDraw], str]


def _forms(method: Callable[[ValueDraw, str], str], *forms: str) -> tuple[Spelling, ...]:
    return tuple(lambda draw, form=form: method(draw, form) for form in forms)


SPELLINGS: Mapping[str, tuple[Spelling, ...]] = MappingProxyType(
    {
        "number": (ValueDraw.number,),
        "count": (lambda draw: str(draw.between(2, 99)), lambda draw: str(draw.between(2, 999))),
        "decimal": (
            lambda draw: f"0.{draw.between(1, 9999):04d}",
            lambda draw: f"{draw.between(1, 99)}.{draw.between(0, 9)}",
        ),
        "percent": (
            lambda draw: f"{draw.between(1, 99)}%",
            lambda draw: f"{draw.between(0, 99)}.{draw.between(0, 9)}%",
        ),
        "price": (
            lambda draw: f"{draw.between(1, 9999)}.{draw.between(0, 99):02d}",
            lambda draw: f"${draw.between(1, 999)}.{draw.between(0, 99):02d}",
            lambda draw: f"{draw.between(1, 999)},{draw.between(0, 999):03d} EUR",
        ),
        "code": _forms(
            ValueDraw.shaped,
            "AA-9999",
            "AAA999",
            "9A9A9A",
            "A-99-AA",
            "AA99 9AA",
            "AAAA-9999-A",
            "999-999-999",
            "aaa-9999a",
        ),
        "hash": _forms(ValueDraw.shaped, "xxxxxxx", "xxxxxxxxxxxx", "xx:xx:xx:xx"),
        "id": _forms(ValueDraw.identifier, "{}-{}-{}-{}-{}", "{}{}{}{}{}", "{}{}", "id-{1}{2}"),
        "date": _forms(
            ValueDraw.date, "{y}-{m:02d}-{d:02d}", "{d} {name} {y}", "{name} {d}, {y}", "{d:02d}/{m:02d}/{y}"
        ),
        "year": (lambda draw: str(draw.between(1850, 2035)),),
        "time": _forms(ValueDraw.time, "{h:02d}:{m:02d}", "{h:02d}:{m:02d}:{s:02d}"),
        "stamp": _forms(ValueDraw.stamp, "{y}-{m:02d}-{d:02d} ", "{y}-{m:02d}-{d:02d}T"),
        "person": _forms(ValueDraw.person, "{first} {last}", "{first} {last}", "{last}, {first}", "{initial}. {last}"),
        "name": _forms(ValueDraw.person, "{first} {last}", "{initial}. {last}"),
        "user": _forms(ValueDraw.person, "{small}.{smaller}", "{smaller}", "{small}_{initial}"),
        "email": _forms(ValueDraw.email, "{small}.{smaller}", "{smaller}", "{small}"),
        "place": (lambda draw: draw.name(PLACE_ENDS),),
        "firm": (lambda draw: f"{draw.syllable().capitalize()}{draw.syllable()} {draw.random.choice(FIRM_ENDS)}",),
        "word": (ValueDraw.word,),
        "phrase": (lambda draw: f"{draw.word()} {draw.word()}",),
        "phone": _forms(ValueDraw.shaped, "+99 999 9999999", "(999) 999-9999", "0999 999999", "999-9999"),
        "address": (lambda draw: ".".join(str(draw.between(1, 254)) for _ in range(4)),),
        "path": (lambda draw: f"/{draw.word()}/{draw.word()}/{draw.word()}.{draw.random.choice(SUFFIXES)}",),
        "version": _forms(ValueDraw.shaped, "9.9.9", "v9.99.9", "9.9"),
        "state": (lambda draw: draw.random.choice(STATES),),
        "flag": (lambda draw: draw.random.choice(("true", "false")), lambda draw: draw.random.choice(("yes", "no"))),
    }
)
